// Splits a text into pieces for byte-level BPE, in linear time; merges do not cross pieces. Regular expressions apply
// one after another, each within the pieces of its predecessor. Their character classes follow one fixed Unicode
// version, whichever version the distribution ships.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/words.h"
#include "engine/data/piece_regex.h"

namespace trivet {

enum class BpePattern { gpt2, llama3, qwen2 };  // for training
constexpr auto words_of(BpePattern) { return word_list("gpt2", "llama3", "qwen2"); }

std::string_view regex_of(BpePattern pattern);

struct BpeSplit {
  enum class Keep { all, matches, gaps };  // the parts that become pieces; the rest is not encoded
  std::string regex;                       // "": no split
  Keep keep = Keep::all;
  bool prefix_space = false;  // before the split, prepends a space to a text that lacks one
  bool operator==(const BpeSplit&) const = default;
};

inline std::vector<BpeSplit> splits_of(BpePattern pattern) { return {{std::string(regex_of(pattern))}}; }

// A text without a valid split point in this many bytes, such as one long word, is split anyway.
inline constexpr size_t kMostUncutBytes = 2 << 20;

class BpeCutter {
 public:
  // Throws DataError if a pattern is not implemented.
  explicit BpeCutter(std::vector<BpeSplit> splits);

  // Calls take(piece) for each piece of a text, in order. goes_on: the text continues one that part_size() split.
  // Throws DataError if a pattern rereads the text too often.
  template <class Take>
  void cut(std::string_view text, bool goes_on, Take&& take) const {
    cut(0, text, goes_on, take);
  }

  // Where to split a text so that its parts yield the pieces of the whole: the last valid position within `most` bytes.
  // If there is none, 0, or any character boundary if `most` >= kMostUncutBytes. The text's size if that is at most
  // `most`. REQUIRES: most >= 4. may_cut(at): false if anything else forbids the split.
  size_t part_size(std::string_view text, size_t most, const std::function<bool(size_t at)>& may_cut) const;

 private:
  template <class Take>
  void cut(size_t step, std::string_view text, bool goes_on, Take& take) const;
  bool separates(std::string_view text, size_t at) const;
  [[noreturn]] void refuse_time(size_t step, size_t bytes) const;

  std::vector<BpeSplit> splits_;
  std::vector<std::optional<PieceRegex>> regexes_;  // [split]
  size_t deciding_ = 0;  // number of leading splits; the next prepends a space to each piece, so pieces must stay whole
};

template <class Take>
void BpeCutter::cut(size_t step, std::string_view text, bool goes_on, Take& take) const {
  if (text.empty()) return;
  if (step == splits_.size()) return take(text);
  const BpeSplit& split = splits_[step];
  std::string spaced;
  if (split.prefix_space && text[0] != ' ' && !(goes_on && step == 0)) text = spaced.append(" ").append(text);
  if (!regexes_[step]) return cut(step + 1, text, goes_on, take);
  const PieceRegex& regex = *regexes_[step];
  size_t gap = 0, read = 0;  // gap: the end of the last match
  for (size_t at = 0; at < text.size();) {
    const PieceRegex::Match match = regex.match(text.substr(at));
    read += match.read;
    if (read > 16 * (text.size() + 65536)) refuse_time(step, text.size());
    if (match.size > 0 && at > gap && split.keep != BpeSplit::Keep::matches)
      cut(step + 1, text.substr(gap, at - gap), goes_on, take);
    if (match.size > 0 && split.keep != BpeSplit::Keep::gaps) cut(step + 1, text.substr(at, match.size), goes_on, take);
    at += match.size > 0 ? match.size : character_at(text, at).size;
    if (match.size > 0) gap = at;
  }
  if (gap < text.size() && split.keep != BpeSplit::Keep::matches) cut(step + 1, text.substr(gap), goes_on, take);
}

}  // namespace trivet
