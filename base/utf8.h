// UTF-8 as defined by RFC 3629.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trivet {

// A byte that is not part of a valid character counts as U+FFFD (which is a symbol, not a letter).
struct Character {
  static constexpr uint32_t kEnd = 0x110000;  // the code for the end of the text, whose size is 0
  uint32_t code;
  size_t size;
  bool valid = true;
};
Character character_at(std::string_view text, size_t at);

// The size in bytes of the first character; 0 if it is invalid (a stray or overlong byte, a surrogate, a truncated
// character) or `text` is empty.
size_t utf8_character(std::string_view text);

// Where to split `text` so that its first part is 1 to `most` bytes long: before the last run of spaces within that
// limit, or else after the last complete character. The text's size if it is within the limit.
size_t part_size(std::string_view text, size_t most);

// Replaces every byte that is not part of a valid character with U+FFFD. Returns the number of replacements.
int64_t repair_utf8(std::string& text);

// For a terminal: control characters except tabs and line ends, and invalid UTF-8, become \xNN. _line: line ends too.
std::string printable(std::string_view text);
std::string printable_line(std::string_view text);

}  // namespace trivet
