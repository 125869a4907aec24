#include "engine/checkpoint/strict_json.h"

#include <fmt/format.h>
#include <set>
#include <vector>

#include "kernels/base/check.h"

namespace trivet {
namespace {

constexpr int kDeepest = 8;

// What a message shows of a value.
std::string shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

nlohmann::json parse_strict_json(std::string_view text, const std::string& source) {
  using nlohmann::json;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kDeepest) throw DataError(fmt::format("{}: JSON nested more than {} deep", source, kDeepest));
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw DataError(fmt::format("{}: the key {} occurs twice in one object", source, shown(parsed)));
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    throw DataError(fmt::format("{}: not valid JSON: {}", source, std::string(error.what()).substr(0, 200)));
  }
}

JsonReader::JsonReader(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) throw DataError(fmt::format("{}: found {}, expected an object", where_, shown(object)));
}

void JsonReader::refuse(const char* name, const std::string& found, const std::string& expected) const {
  throw DataError(fmt::format("{}: {}: found {}, expected {}", where_, name, found, expected));
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

std::string JsonReader::text(const char* name) const {
  const nlohmann::json& value = member(name, "a text");
  if (!value.is_string()) refuse(name, shown(value), "a text");
  return value.get<std::string>();
}

const nlohmann::json& JsonReader::array(const char* name) const {
  const nlohmann::json& value = member(name, "a list");
  if (!value.is_array()) refuse(name, shown(value), "a list");
  return value;
}

JsonReader JsonReader::object(const char* name) const { return {member(name, "an object"), where_ + ": " + name}; }

}  // namespace trivet
