#include "engine/data/bpe_pattern.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/utf8.h"
#include "engine/data/unicode_table.h"

namespace trivet {
namespace {

enum class CharacterClass : uint8_t { symbol, letter, number, space, none };
using enum CharacterClass;

struct Character {
  CharacterClass type = none;  // none: the end of the text
  size_t size = 0;
};

// By code point.
const CharacterClass* character_classes() {
  static const std::vector<CharacterClass> classes = [] {
    std::vector<CharacterClass> made(0x110000, symbol);
    const auto mark = [&](const auto& runs, CharacterClass type) {
      size_t at = 0;
      for (size_t i = 0; i < std::size(runs); i += 2) {
        std::fill_n(made.begin() + static_cast<std::ptrdiff_t>(at + runs[i]), runs[i + 1], type);
        at += runs[i] + runs[i + 1];
      }
    };
    mark(kLetterRuns, letter);
    mark(kNumberRuns, number);
    mark(kSpaceRuns, space);
    return made;
  }();
  return classes.data();
}

bool is_line_end(char c) { return c == '\r' || c == '\n'; }
bool continues_character(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

class CharacterScan {
 public:
  explicit CharacterScan(std::string_view text) : text_(text) {}

  Character at(size_t i) const {
    if (i >= text_.size()) return {};
    const auto first = static_cast<uint8_t>(text_[i]);
    if (first < 0x80) return {classes_[first], 1};
    const size_t size = utf8_character(text_.substr(i));
    if (size == 0) return {symbol, 1};
    uint32_t code = first & (0x7fu >> size);
    for (size_t k = 1; k < size; ++k) code = code << 6 | (static_cast<uint8_t>(text_[i + k]) & 0x3fu);
    return {classes_[code], size};
  }

  // The one that ends at `end`.
  Character before(size_t end) const {
    size_t begin = end - 1;
    while (begin > 0 && begin + 4 > end && continues_character(text_[begin])) --begin;
    const Character found = at(begin);
    return found.size == end - begin ? found : Character{symbol, 1};
  }

  // Where a run of at most `most` characters of this class ends that begins at i.
  size_t run(size_t i, CharacterClass type, size_t most = SIZE_MAX) const {
    for (Character next = at(i); next.type == type && most > 0; next = at(i)) {
      i += next.size;
      --most;
    }
    return i;
  }

 private:
  std::string_view text_;
  const CharacterClass* classes_ = character_classes();
};

// The size of 's, 't, 'm, 'd, 're, 've or 'll at the beginning; else 0.
size_t contraction_size(std::string_view text, bool any_case) {
  if (text[0] != '\'') return 0;
  if (any_case && text.substr(1).starts_with("\u017f")) return 3;  // the long s is a case of s
  const auto lower = [&](size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && 'A' <= c && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  const char a = lower(1), b = lower(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

}  // namespace

std::string_view regex_of(BpePattern pattern) {
  switch (pattern) {
    case BpePattern::gpt2: return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    case BpePattern::llama3:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case BpePattern::qwen2:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  }
  return "";
}

// The alternatives of the expression in their order.
size_t bpe_piece_size(BpePattern pattern, std::string_view text) {
  const bool gpt2 = pattern == BpePattern::gpt2, blank = text[0] == ' ';
  if (const size_t size = contraction_size(text, !gpt2)) return size;
  const CharacterScan scan(text);
  const Character first = scan.at(0), second = scan.at(first.size);
  const bool leads_letters = gpt2 ? blank : first.type != number && !is_line_end(text[0]);
  if (first.type == letter || (leads_letters && second.type == letter)) return scan.run(first.size, letter);
  if (first.type == number) return scan.run(0, number, gpt2 ? SIZE_MAX : pattern == BpePattern::llama3 ? 3 : 1);
  if (gpt2 && blank && second.type == number) return scan.run(1, number);
  if (first.type == symbol || (blank && second.type == symbol)) {
    size_t end = scan.run(first.size, symbol);
    while (!gpt2 && end < text.size() && is_line_end(text[end])) ++end;
    return end;
  }
  const size_t end = scan.run(0, space);
  if (const size_t line_end = text.substr(0, end).find_last_of("\r\n"); !gpt2 && line_end != text.npos)
    return line_end + 1;
  if (end == text.size()) return end;
  const size_t last = end - scan.before(end).size;  // which goes with what follows
  return last > 0 ? last : end;
}

size_t bpe_part_size(std::string_view text, size_t most, const std::function<bool(size_t at)>& may_cut) {
  if (text.size() <= most) return text.size();
  const CharacterScan scan(text);
  // Behind a letter or a number comes something else, or a space behind what is no white space: a piece ends there.
  const auto cuts = [&](size_t at) {
    if (continues_character(text[at])) return false;
    const CharacterClass before = scan.before(at).type, behind = scan.at(at).type;
    const bool ends = before == letter || before == number ? before != behind : before != space && text[at] == ' ';
    return ends && may_cut(at);
  };
  // Of the last character of the text bytes may be missing.
  for (size_t at = std::min(most, text.size() - 4); at > 0; --at)
    if (cuts(at)) return at;
  return 0;
}

}  // namespace trivet
