// Reading JSON. The library's parser is a template that takes seconds to compile: it is compiled once, in json.cc.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace trivet {

// ---- text that Trivet itself has written

// Parses the text. Json: nlohmann::json, or ordered_json, which keeps the order of members.
// If the text is invalid, throws Json::parse_error or returns a discarded value (is_discarded()). More than 500
// levels of nesting are invalid for ordered_json too, but throw a DataError.
enum class BadJson { throws, discarded };
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, BadJson bad = BadJson::throws);

extern template nlohmann::json parse_json(std::string_view, BadJson);
extern template nlohmann::ordered_json parse_json(std::string_view, BadJson);

// Like parse_json(), but for an object, keeping only its member `key`: the others take no memory.
// A zero byte or a duplicate `key` is a parse_error. first_key: receives the key of the first member.
nlohmann::json parse_json_member(std::string_view text, std::string_view key, std::string& first_key);

// error.what(), without the bracketed name that the library's messages begin with.
std::string json_problem(const std::exception& error);

// The text as a JSON string, with its quotes; bytes that are not UTF-8 become U+FFFD.
std::string json_text(std::string_view text);

// ---- untrusted files

// Throws DataError, naming `source`, for invalid JSON and for what the standard leaves to the parser: a duplicate key,
// more than eight levels of nesting, bytes that are not UTF-8, or text after the value.
nlohmann::json parse_strict_json(std::string_view text, const std::string& source);

// Reads one object's members by name. Throws DataError if a member is missing, of the wrong type, or out of bounds;
// the text names the file, the member, and what was found and expected.
class JsonReader {
 public:
  JsonReader(const nlohmann::json& object, std::string where);

  int64_t integer(const char* name, int64_t least = 0, int64_t most = INT64_MAX) const;
  double number(const char* name) const;
  std::string text(const char* name) const;
  bool flag(const char* name) const;
  const nlohmann::json& array(const char* name) const;
  // A list of `least` to `most` integers, each from 0 to `limit`.
  std::vector<int64_t> integers(const char* name, size_t least, size_t most, int64_t limit) const;
  std::map<std::string, std::string> texts(const char* name) const;  // an object whose members are strings
  const nlohmann::json& member(const char* name, const char* expected = "a value") const;
  JsonReader object(const char* name) const;
  bool has(const char* name) const { return object_.contains(name); }
  [[noreturn]] void refuse(const char* name, const std::string& found, const std::string& expected) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace trivet
