#include "engine/data/text_printer.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <utility>

namespace trivet {
namespace {

// The bytes of `text` without a character at its end of which more bytes may come, or for which a tokenizer that wants
// whole ones has put U+FFFD.
size_t settled(const std::string& text) {
  size_t end = text.size();
  for (size_t back = 1; back <= std::min<size_t>(4, end); ++back) {
    const auto byte = static_cast<unsigned char>(text[end - back]);
    if (byte < 0x80) break;
    if (byte < 0xC0) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    if (back < length) end -= back;
    break;
  }
  while (end >= 3 && text.compare(end - 3, 3, "\xEF\xBF\xBD") == 0) end -= 3;
  return end;
}

}  // namespace

void TextPrinter::add(std::span<const int32_t> tokens) {
  if (!tokenizer_) return put_(fmt::format("{}{}", std::exchange(begun_, true) ? "," : "", fmt::join(tokens, ",")));
  held_.insert(held_.end(), tokens.begin(), tokens.end());
  const std::string text = tokenizer_->decode(held_);
  const size_t whole = settled(text);
  if (whole > printed_) put_(text.substr(printed_, whole - printed_));
  printed_ = std::max(printed_, whole);
}

void TextPrinter::finish() {
  std::string rest = tokenizer_ ? tokenizer_->decode(held_) : "";
  rest.erase(0, std::min(printed_, rest.size()));
  put_(rest + "\n");
}

}  // namespace trivet
