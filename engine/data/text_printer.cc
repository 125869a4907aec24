#include "engine/data/text_printer.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <unistd.h>
#include <utility>

#include "base/utf8.h"

namespace trivet {
namespace {

// The size of `text` without its last character if more bytes may complete that character, or if a tokenizer that
// decodes only complete characters has emitted U+FFFD for it.
size_t settled(const std::string& text) {
  size_t end = text.size();
  size_t lead = end;  // of the last character
  while (lead > 0 && lead + 4 > end && (lead == end || (static_cast<uint8_t>(text[lead]) & 0xc0) == 0x80)) --lead;
  if (!character_at(text, lead).valid) end = lead;
  while (end >= 3 && text.compare(end - 3, 3, "\xEF\xBF\xBD") == 0) end -= 3;
  return end;
}

// Sampled text could move a terminal's cursor or change its title.
std::string for_output(std::string text) { return isatty(STDOUT_FILENO) == 0 ? text : printable(text); }

}  // namespace

void TextPrinter::add(std::span<const int32_t> tokens) {
  if (!tokenizer_) return put_(fmt::format("{}{}", std::exchange(begun_, true) ? "," : "", fmt::join(tokens, ",")));
  held_.insert(held_.end(), tokens.begin(), tokens.end());
  const std::string text = tokenizer_->decode(held_);
  const size_t whole = settled(text);
  if (whole > printed_) put_(for_output(text.substr(printed_, whole - printed_)));
  printed_ = std::max(printed_, whole);
}

void TextPrinter::finish() {
  std::string rest = tokenizer_ ? tokenizer_->decode(held_) : "";
  rest.erase(0, std::min(printed_, rest.size()));
  put_(for_output(rest) + "\n");
}

}  // namespace trivet
