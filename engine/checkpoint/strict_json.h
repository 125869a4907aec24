// JSON from files that nobody vouches for: what the standard leaves to the reader is refused. A key given twice, more
// than eight levels of nesting, bytes that are not UTF-8, or text after the value is a DataError naming `source`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace trivet {

nlohmann::json parse_strict_json(std::string_view text, const std::string& source);

// Reads one object's members by name. A missing member, a value of another type or out of bounds is a DataError that
// names file and member, what was found and what was expected.
class JsonReader {
 public:
  JsonReader(const nlohmann::json& object, std::string where);

  int64_t integer(const char* name, int64_t least = 0, int64_t most = INT64_MAX) const;
  std::string text(const char* name) const;
  const nlohmann::json& array(const char* name) const;
  JsonReader object(const char* name) const;
  [[noreturn]] void refuse(const char* name, const std::string& found, const std::string& expected) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& member(const char* name, const char* expected) const;

  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace trivet
