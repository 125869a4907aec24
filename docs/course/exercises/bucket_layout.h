// bucket_layout: chapter 4, 30 minutes
//
// Gradients become final from the last parameter to the first. So that their sums over the data-parallel ranks can
// begin early, they lie in one buffer in that order, cut into buckets: a bucket is reduced as soon as all of it is
// final. Lay it out:
//   * every parameter begins at a multiple of 64 elements, and its length is rounded up to a multiple of 64 too
//   * a bucket closes with the parameter that brings it to bucket_size elements, or with the last parameter
//   * the length of a bucket is rounded up to a multiple of both 128 and `ranks`, the number of ranks that share it
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trivet::exercise {

struct BucketLayout {
  std::vector<int64_t> offsets;  // of each parameter, in elements
  std::vector<int64_t> ends;     // of each bucket; the next bucket begins there
  bool operator==(const BucketLayout&) const = default;
};

// lengths: of the parameters in the order of the buffer
BucketLayout bucket_layout(std::span<const int64_t> lengths, int64_t bucket_size, int ranks);

}  // namespace trivet::exercise

// Hints
//   1. One pass: keep the end of the layout so far, and the start of the open bucket.
//   2. Rounding x up to a multiple of n is (x + n - 1) / n * n.
//   3. A multiple of both numbers is a multiple of std::lcm(ranks, 128), which is not 128 for 3 ranks.
// In the engine: parallel/data/flat_buffer.cc:lay_out.
