#include "base/utf8.h"

#include <fmt/format.h>

namespace trivet {

size_t utf8_character(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xc2 && lead <= 0xdf   ? 2
                      : (lead & 0xf0) == 0xe0        ? 3
                      : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                     : 0;
  if (size == 0 || size > text.size()) return 0;
  // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
  const uint8_t least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t i = 2; i < size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return size;
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
  size_t valid = 0;
  while (valid < text.size()) {
    const size_t size = utf8_character(std::string_view(text).substr(valid));
    if (size == 0) break;
    valid += size;
  }
  if (valid == text.size()) return 0;

  int64_t replaced = 0;
  std::string repaired = text.substr(0, valid);
  for (std::string_view rest = std::string_view(text).substr(valid); !rest.empty();) {
    const size_t size = utf8_character(rest);
    if (size == 0) {
      repaired += "\xef\xbf\xbd";
      ++replaced;
    } else {
      repaired += rest.substr(0, size);
    }
    rest.remove_prefix(size == 0 ? 1 : size);
  }
  text = std::move(repaired);
  return replaced;
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t size = utf8_character(text);
    const auto first = static_cast<uint8_t>(text[0]);
    // U+0080 … U+009F are control characters too, to some terminals.
    const bool control = (size == 1 && (first < ' ' || first == 127) && first != '\n') ||
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

}  // namespace trivet
