// Blend: the order in which samples are drawn from several datasets, as in Megatron's build_blending_indices: sample i
// comes from the source that is furthest below its share of i. A pure function of the index.
#pragma once

#include <cstdint>
#include <vector>

#include "base/piece.h"

namespace trivet {

// Not thread-safe.
class Blend {
 public:
  struct Place {
    size_t source;  // the number of sources: all are exhausted
    int64_t sample;
  };

  // weights: above 0. sizes: the samples of each source; an exhausted source is left out, and the others keep their
  // proportions.
  Blend(std::vector<double> weights, std::vector<int64_t> sizes);

  // Accepts any index. Takes constant time for the next index, otherwise time proportional to the distance from the
  // next index or from the last anchor before the given one. An anchor is kept for every kAnchor samples passed so far.
  Place at(int64_t index);
  // The number of samples from each source among the first `total`, up to rounding.
  std::vector<double> expected(double total) const;

 private:
  static constexpr int64_t kAnchor = piece(1 << 16, 16);
  struct Cursor {
    int64_t index = 0, base = 0;          // base: where a source was last left out
    std::vector<double> shares;           // since base; 0: left out
    std::vector<int64_t> taken, at_base;  // samples taken before `index`; before `base`
  };

  size_t choose() const;
  void advance();

  std::vector<double> weights_;
  std::vector<int64_t> sizes_;
  Cursor cursor_;
  std::vector<Cursor> anchors_;
};

}  // namespace trivet
