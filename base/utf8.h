// UTF-8 as RFC 3629 has it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trivet {

// A byte that is no part of a valid character counts as U+FFFD, a symbol.
struct Character {
  static constexpr uint32_t kEnd = 0x110000;  // the code of the end of the text, which has no size
  uint32_t code;
  size_t size;
  bool valid = true;
};
Character character_at(std::string_view text, size_t at);

// The size in bytes of the first character; 0 if it is invalid (a stray or overlong byte, a surrogate, a truncated
// character) or `text` is empty.
size_t utf8_character(std::string_view text);

// The position to cut a text so that its first part has at most `most` bytes, at least 1: before the last run of white
// space there, or else after the last whole character. Its whole size if it is not longer.
size_t part_size(std::string_view text, size_t most);

// Replaces every byte of no valid character by U+FFFD. Returns how many.
int64_t repair_utf8(std::string& text);

// For a terminal: control characters except tabs and line ends, and invalid UTF-8, as \xNN; the second: line ends too.
std::string printable(std::string_view text);
std::string printable_line(std::string_view text);

}  // namespace trivet
