// What messages about names and texts are made of.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trivet {

// The candidate that `text` is probably a misspelling of; "" where nothing is near.
std::string_view nearest(std::string_view text, const std::vector<std::string_view>& candidates);
// The parts of the text between commas, without the spaces around them; at least one, perhaps empty.
std::vector<std::string_view> split_words(std::string_view text);
inline bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }
// The text in quotes, at most 60 characters of it, control characters made visible.
std::string quote(std::string_view text);

}  // namespace trivet
