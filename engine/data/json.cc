#include "engine/data/json.h"

namespace trivet {

template <class Json>
Json parse_json(std::string_view text) {
  return Json::parse(text);
}

template <class Json>
Json parse_json_or_discard(std::string_view text) {
  return Json::parse(text, nullptr, false);
}

template nlohmann::json parse_json(std::string_view);
template nlohmann::json parse_json_or_discard(std::string_view);
template nlohmann::ordered_json parse_json(std::string_view);
template nlohmann::ordered_json parse_json_or_discard(std::string_view);

}  // namespace trivet
