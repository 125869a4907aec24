// Reading JSON. The library's parser is a template that takes seconds to compile: it is compiled once, in json.cc.
// Untrusted files of checkpoints are read by strict_json.h.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace trivet {

// The value that the text is. Json: nlohmann::json, or ordered_json, which keeps the order of members.
// Throws Json::parse_error where it is none.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text);

// Likewise, but a discarded value (is_discarded()) where it is none.
template <class Json = nlohmann::json>
Json parse_json_or_discard(std::string_view text);

extern template nlohmann::json parse_json(std::string_view);
extern template nlohmann::json parse_json_or_discard(std::string_view);
extern template nlohmann::ordered_json parse_json(std::string_view);
extern template nlohmann::ordered_json parse_json_or_discard(std::string_view);

}  // namespace trivet
