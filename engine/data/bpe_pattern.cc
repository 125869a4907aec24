#include "engine/data/bpe_pattern.h"

#include <algorithm>
#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"
#include "base/utf8.h"

namespace trivet {
namespace {

constexpr size_t kForcedWindow = 4096;  // bytes to search for a forced cut

bool continues_character(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

// The character that ends at `end`.
Character character_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && begin + 4 > end && continues_character(text[begin])) --begin;
  const Character found = character_at(text, begin);
  return found.size == end - begin ? found : character_at("\xff", 0);
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

BpeCutter::BpeCutter(std::vector<BpeSplit> splits) : splits_(std::move(splits)), deciding_(splits_.size()) {
  for (size_t i = 0; i < splits_.size(); ++i) {
    regexes_.emplace_back();
    if (!splits_[i].regex.empty()) regexes_.back().emplace(splits_[i].regex);
    if (i > 0 && splits_[i].prefix_space) deciding_ = std::min(deciding_, i);
  }
}

void BpeCutter::refuse_time(size_t step, size_t bytes) const {
  throw DataError(fmt::format("the pattern {} takes too many steps to split a text of {} bytes: expected linear time",
                              json_text(splits_[step].regex), bytes));
}

// True if no expression's match spans `at` or depends on the text after it, so that every expression finds the same
// matches in the parts, and if at least one expression leaves no gap between matches that spans `at`.
bool BpeCutter::separates(std::string_view text, size_t at) const {
  if (continues_character(text[at])) return false;
  const uint32_t before = character_before(text, at).code, behind = character_at(text, at).code;
  bool separates = false;
  for (size_t i = 0; i < regexes_.size(); ++i) {
    if (!regexes_[i]) continue;
    if (regexes_[i]->joins(before, behind)) return false;
    if (i < deciding_ && (regexes_[i]->always_matches(before) || regexes_[i]->always_matches(behind))) separates = true;
  }
  return separates;
}

size_t BpeCutter::part_size(std::string_view text, size_t most, const std::function<bool(size_t at)>& may_cut) const {
  if (text.size() <= most) return text.size();
  // The last character of the text may be incomplete.
  const size_t last = std::min(most, text.size() - 4);
  for (size_t at = last; at > 0; --at)
    if (separates(text, at) && may_cut(at)) return at;
  if (most < kMostUncutBytes) return 0;
  for (size_t at = last; at > last - std::min(last, kForcedWindow); --at)
    if (!continues_character(text[at]) && may_cut(at)) return at;
  return trivet::part_size(text.substr(0, last + 1), last);
}

}  // namespace trivet
