// Blend: the order in which a blend of datasets takes their samples, as Megatron's build_blending_indices: sample i
// comes from the source with the largest deficit to its share of i. A pure function of the index.
#pragma once

#include <cstdint>
#include <vector>

namespace trivet {

// One thread at a time.
class Blend {
 public:
  struct Place {
    size_t source;  // as many as there are: all sources have ended
    int64_t sample;
  };

  // weights: above 0. sizes: the samples of each source; one that has given them all is left out, and the others keep
  // their proportion.
  Blend(std::vector<double> weights, std::vector<int64_t> sizes);

  // Any index, in constant time if it is the next one; otherwise in time proportional to the way from there or from the
  // last of the anchors before it, which are kept for each kAnchor samples that have been passed.
  Place at(int64_t index);
  // The counts of the sources in the first `total` samples, but for roundings.
  std::vector<double> expected(double total) const;

 private:
  static constexpr int64_t kAnchor = 1 << 16;
  struct Cursor {
    int64_t index = 0, base = 0;          // base: where the last source was left out
    std::vector<double> shares;           // since there; 0: left out
    std::vector<int64_t> taken, at_base;  // samples before `index`; before `base`
  };

  size_t choose() const;
  void advance();

  std::vector<double> weights_;
  std::vector<int64_t> sizes_;
  Cursor cursor_;
  std::vector<Cursor> anchors_;
};

}  // namespace trivet
