#include "base/utf8.h"

#include <fmt/format.h>
#include <utf8proc.h>

namespace trivet {

Character character_at(std::string_view text, size_t at) {
  if (at >= text.size()) return {Character::kEnd, 0};
  const auto* const first = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
  if (*first < 0x80) return {*first, 1};
  utf8proc_int32_t code = 0;
  const auto size = utf8proc_iterate(first, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  return size > 0 ? Character{static_cast<uint32_t>(code), static_cast<size_t>(size)} : Character{0xfffd, 1, false};
}

size_t utf8_character(std::string_view text) {
  const Character first = character_at(text, 0);
  return first.valid ? first.size : 0;
}

size_t part_size(std::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  const size_t space = text.rfind(' ', most);
  const size_t word = space == std::string_view::npos ? space : text.find_last_not_of(' ', space);
  if (word != std::string_view::npos) return word + 1;
  size_t end = most;
  while (end > 1 && end + 3 > most && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
  return end;
}

int64_t repair_utf8(std::string& text) {
  std::string repaired;
  int64_t replaced = 0;
  size_t kept = 0;  // bytes of the text already copied to `repaired`, or replaced there
  for (size_t at = 0; at < text.size();) {
    const Character next = character_at(text, at);
    if (!next.valid) {
      repaired.append(text, kept, at - kept).append("\xef\xbf\xbd");
      kept = at + 1;
      ++replaced;
    }
    at += next.size;
  }
  if (replaced > 0) text = repaired.append(text, kept);
  return replaced;
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t size = utf8_character(text);
    const auto first = static_cast<uint8_t>(text[0]);
    // Some terminals treat U+0080 … U+009F as control characters too.
    const bool control = (size == 1 && (first < ' ' || first == 127) && first != '\n' && first != '\t') ||
                         (size == 2 && first == 0xc2 && static_cast<uint8_t>(text[1]) < 0xa0);
    const size_t taken = size == 0 ? 1 : size;
    for (size_t i = 0; i < taken; ++i) {
      if (size == 0 || control) shown += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[i]));
      else shown += text[i];
    }
    text.remove_prefix(taken);
  }
  return shown;
}

std::string printable_line(std::string_view text) {
  std::string line = printable(text);
  for (size_t at = 0; (at = line.find('\n', at)) != line.npos;) line.replace(at, 1, "\\x0a");
  return line;
}

}  // namespace trivet
