// Cuts a text for byte-level BPE into pieces, which no merge crosses: by regular expressions one after another, each
// within the pieces of its predecessor, in linear time, with the character classes of one Unicode version whatever the
// distribution has.
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

enum class BpePattern { gpt2, llama3, qwen2 };  // to train
constexpr auto words_of(BpePattern) { return word_list("gpt2", "llama3", "qwen2"); }

std::string_view regex_of(BpePattern pattern);

struct BpeSplit {
  enum class Keep { all, matches, gaps };  // the parts that become pieces: others are not encoded
  std::string regex;                       // "": no cut
  Keep keep = Keep::all;
  bool prefix_space = false;  // before the cut, in front of a text that does not begin with one
  bool operator==(const BpeSplit&) const = default;
};

inline std::vector<BpeSplit> splits_of(BpePattern pattern) { return {{std::string(regex_of(pattern))}}; }

// A text without a place to cut in this many bytes, such as one word, is cut all the same.
inline constexpr size_t kMostUncutBytes = 2 << 20;

class BpeCutter {
 public:
  // A pattern that is not implemented is a DataError.
  explicit BpeCutter(std::vector<BpeSplit> splits);

  // Gives take(piece) the pieces of a text in their order. goes_on: it is not the beginning of one, but was cut off
  // where part_size() says. A pattern that looks at the text again and again is a DataError.
  template <class Take>
  void cut(std::string_view text, bool goes_on, Take&& take) const {
    cut(0, text, goes_on, take);
  }

  // The position to cut a text so that its parts have the pieces of the whole: the last such place within `most` bytes,
  // which are at least 4; 0 if there is none, but from kMostUncutBytes on any between characters. All of a text that
  // is not longer. may_cut(at): whether nothing else forbids it.
  size_t part_size(std::string_view text, size_t most, const std::function<bool(size_t at)>& may_cut) const;

 private:
  template <class Take>
  void cut(size_t step, std::string_view text, bool goes_on, Take& take) const;
  bool separates(std::string_view text, size_t at) const;
  [[noreturn]] void refuse_time(size_t step, size_t bytes) const;

  std::vector<BpeSplit> splits_;
  std::vector<std::optional<PieceRegex>> regexes_;  // of splits_
  size_t deciding_ = 0;  // the first ones; the pieces of the others get a space each, and must stay whole
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
  size_t gap = 0, read = 0;  // gap: where the last match ended
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
