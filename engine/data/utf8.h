// UTF-8 as RFC 3629 has it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trivet {

// The bytes of the character that `text` begins with; 0 where it begins with none (a stray or overlong byte, a
// surrogate, a character that is cut off) or is empty.
size_t utf8_character(std::string_view text);

// Puts U+FFFD for every byte that is of no character. Returns how many.
int64_t repair_utf8(std::string& text);

// For a terminal: control characters except line ends, and what is no UTF-8, as \xNN.
std::string printable(std::string_view text);

}  // namespace trivet
