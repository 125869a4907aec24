// The regular expressions that tokenizers use to split text into pieces. They match as in Oniguruma, which `tokenizers`
// uses: leftmost, first alternative, greedy. Compiled to a deterministic automaton over character classes, so that a
// match reads each character once.
//
// Implemented: alternatives; groups (…), (?:…) and, for ASCII, (?i:…); classes with ranges, negation and nested
// classes; . $ \s \S \d \D \p{…} \P{…} for general categories; ? * + {n,m}, and ?+ *+ ++ for one character; look-ahead
// (?=X) and (?!X) for one character X.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace trivet {

class PieceRegex {
 public:
  // Throws DataError, naming the position, if the pattern is not implemented, can match "", or needs too much memory.
  explicit PieceRegex(std::string_view pattern);

  struct Match {
    size_t size = 0;  // in bytes; 0: no match begins here
    size_t read = 0;  // bytes that were read
  };
  Match match(std::string_view text) const {
    Match found;
    for (uint32_t state = start_;;) {
      const auto first = static_cast<uint8_t>(found.read < text.size() ? text[found.read] : 0x80);
      Character next{first, 1};
      if (first >= 0x80) next = character_at(text, found.read);
      const uint32_t step = (steps_.data() + classes_[next.code])[state];
      if (step & kMatches) found.size = found.read;
      state = step & ~kMatches;
      if (state == 0) return found;
      found.read += next.size;
    }
  }

  // For splitting a text between two characters. joins(): a match can span the position or depend on what follows it.
  // always_matches(): a match begins at every such character.
  bool joins(uint32_t before, uint32_t behind) const { return joined_[classes_[before] * count_ + classes_[behind]]; }
  bool always_matches(uint32_t code) const { return always_[classes_[code]]; }
  bool always_matches() const;

 private:
  static constexpr uint32_t kMatches = 1u << 31;

  std::vector<uint8_t> classes_;  // by code point or kEnd
  size_t count_ = 0;              // of classes
  uint32_t start_ = 0;
  // Indexed by state, a multiple of count_ (0: no match continues), plus the class of the next character: the next
  // state, plus kMatches if a match ends before that character.
  std::vector<uint32_t> steps_;
  std::vector<bool> joined_, always_;
};

}  // namespace trivet
