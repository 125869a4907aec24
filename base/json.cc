#include "base/json.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"

namespace trivet {

namespace {

// The library copies a growing ordered_json recursively: deep nesting would overflow the stack.
constexpr int kMostLevels = 500;

bool is_nested_too_deeply(std::string_view text) {
  int levels = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted && c == '\\') ++i;
    if (quoted) continue;
    if (c == '[' || c == '{') ++levels;
    if (c == ']' || c == '}') --levels;
    if (levels > kMostLevels) return true;
  }
  return false;
}

constexpr size_t kDeepest = 8;

bool is_deeper_than(size_t levels, const nlohmann::json& value) {
  if (!value.is_structured()) return false;
  return levels == 0 || std::ranges::any_of(value, [&](const auto& part) { return is_deeper_than(levels - 1, part); });
}

// A value as shown in messages. The library's dump() recurses, and deep nesting would overflow the stack.
std::string shown(const nlohmann::json& value) {
  if (is_deeper_than(kDeepest, value))
    return fmt::format("{} nested more than {} deep", value.is_array() ? "a list" : "an object", kDeepest);
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

template <class Json>
Json parse_json(std::string_view text, BadJson bad) {
  if (!std::is_same_v<Json, nlohmann::ordered_json> || !is_nested_too_deeply(text))
    return Json::parse(text, nullptr, bad == BadJson::throws);
  if (bad == BadJson::throws) throw DataError(fmt::format("JSON nested more than {} deep", kMostLevels));
  return Json(Json::value_t::discarded);
}

template nlohmann::json parse_json(std::string_view, BadJson);
template nlohmann::ordered_json parse_json(std::string_view, BadJson);

nlohmann::json parse_json_member(std::string_view text, std::string_view key, std::string& first_key) {
  const auto refuse = [](size_t at, const std::string& what) {
    throw nlohmann::json::parse_error::create(101, at, what, nullptr);
  };
  // The library treats a zero byte as the end of the text, and would ignore what follows.
  if (const size_t zero = text.find('\0'); zero != text.npos) refuse(zero + 1, "a zero byte");
  bool found = false;
  const auto keep = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    if (depth != 1 || event != nlohmann::json::parse_event_t::key) return true;
    if (first_key.empty()) first_key = parsed.get<std::string>();
    if (parsed == key && std::exchange(found, true)) refuse(0, "the key " + shown(parsed) + " occurs twice");
    return parsed == key;
  };
  return nlohmann::json::parse(text, keep);
}

std::string json_problem(const std::exception& error) {
  const std::string_view what = error.what();
  const size_t end = what.starts_with("[json.exception.") ? what.find("] ") : std::string_view::npos;
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

namespace {

// Scans JSON text without building values, and rejects some that the library's own reader accepts. (A callback of that
// reader would walk an object's members for each one added.)
class Watch : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Watch(const std::string& source) : source_(source) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(size_t) override { return open(); }
  bool start_object(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool end_object() override { return close(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second)
      throw DataError(fmt::format("{}: the key {} occurs twice in one object", source_, shown(name)));
    if (name.find('\0') != name.npos)  // the zero byte would truncate a message
      throw DataError(
          fmt::format("{}: the key {} has a NUL character, expected none (in a vocabulary of byte-level BPE "
                      "the byte 0 is \"\u0100\")",
                      source_, shown(name)));
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw DataError(fmt::format("{}: not valid JSON: {}", source_, json_problem(error).substr(0, 200)));
  }

 private:
  bool open() {
    if (keys_.size() == kDeepest) throw DataError(fmt::format("{}: JSON nested more than {} deep", source_, kDeepest));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& source_;
  std::vector<std::set<std::string>> keys_;  // of each open object; empty for an array
};

}  // namespace

nlohmann::json parse_strict_json(std::string_view text, const std::string& source) {
  // The library treats a zero byte as the end of the text, and would ignore what follows.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    throw DataError(fmt::format("{}: not valid JSON: a zero byte at {}", source, zero));
  Watch watch(source);
  nlohmann::json::sax_parse(text.begin(), text.end(), &watch);
  return nlohmann::json::parse(text.begin(), text.end());
}

JsonReader::JsonReader(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) throw DataError(fmt::format("{}: found {}, expected an object", where_, shown(object)));
}

void JsonReader::refuse(const char* name, const std::string& found, const std::string& expected) const {
  const std::string_view member(name);  // may come from the file, and be long
  throw DataError(fmt::format("{}: {}: found {}, expected {}", where_, member.substr(0, 200), found, expected));
}

const nlohmann::json& JsonReader::member(const char* name, const char* expected) const {
  const auto at = object_.find(name);
  if (at == object_.end()) refuse(name, "nothing", expected);
  return *at;
}

int64_t JsonReader::integer(const char* name, int64_t least, int64_t most) const {
  const nlohmann::json& value = member(name, "an integer");
  const std::string expected = fmt::format("an integer from {} to {}", least, most);
  if (!value.is_number_integer()) refuse(name, shown(value), expected);
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    refuse(name, shown(value), expected);
  const auto number = value.get<int64_t>();
  if (number < least || number > most) refuse(name, shown(value), expected);
  return number;
}

double JsonReader::number(const char* name) const {
  const nlohmann::json& value = member(name, "a number");
  if (!value.is_number()) refuse(name, shown(value), "a number");
  return value.get<double>();
}

std::string JsonReader::text(const char* name) const {
  const nlohmann::json& value = member(name, "a string");
  if (!value.is_string()) refuse(name, shown(value), "a string");
  return value.get<std::string>();
}

bool JsonReader::flag(const char* name) const {
  const nlohmann::json& value = member(name, "true or false");
  if (!value.is_boolean()) refuse(name, shown(value), "true or false");
  return value.get<bool>();
}

const nlohmann::json& JsonReader::array(const char* name) const {
  const nlohmann::json& value = member(name, "a list");
  if (!value.is_array()) refuse(name, shown(value), "a list");
  return value;
}

std::vector<int64_t> JsonReader::integers(const char* name, size_t least, size_t most, int64_t limit) const {
  std::vector<int64_t> numbers;
  for (const nlohmann::json& value : array(name)) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(limit))
      refuse(name, shown(value), fmt::format("integers from 0 to {}", limit));
    numbers.push_back(value.get<int64_t>());
  }
  if (numbers.size() < least || numbers.size() > most)
    refuse(name, fmt::format("{} numbers", numbers.size()),
           least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most));
  return numbers;
}

std::map<std::string, std::string> JsonReader::texts(const char* name) const {
  const JsonReader reader = object(name);
  std::map<std::string, std::string> texts;
  for (const auto& [key, value] : reader.object_.items()) texts[key] = reader.text(key.c_str());
  return texts;
}

JsonReader JsonReader::object(const char* name) const { return {member(name, "an object"), where_ + ": " + name}; }

}  // namespace trivet
