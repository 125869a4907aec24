// The mistake: buckets of a multiple of 128 elements. 2, 4 and 8 ranks divide that; 3 and 6 do not.
#include "docs/course/exercises/bucket_layout.h"

namespace trivet::exercise {

BucketLayout bucket_layout(std::span<const int64_t> lengths, int64_t bucket_size, int ranks) {
  const auto round_up = [](int64_t x, int64_t n) { return (x + n - 1) / n * n; };
  BucketLayout layout;
  int64_t begin = 0, end = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    layout.offsets.push_back(end);
    end += round_up(lengths[i], 64);
    if (end - begin < bucket_size && i + 1 < lengths.size()) continue;
    begin = end = begin + round_up(end - begin, 128);
    layout.ends.push_back(end);
  }
  return layout;
}

}  // namespace trivet::exercise
