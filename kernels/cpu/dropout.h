// Dropout masks on the CPU: the contract of trivet::Dropout (kernels/ops.h), a run of consecutive elements at a time.
#pragma once

#include <algorithm>

#include "kernels/ops.h"
#include "kernels/philox.h"

namespace trivet {

inline constexpr int64_t kDropoutChunk = 512;  // elements that are drawn at once, into a buffer on the stack

// For elements [first, first + count) by global index: 0 where one is dropped, 1 / (1 - probability) where it is kept.
// Returns where in `buffer`, which has room for count + 8, they start.
inline const float* dropout_scales(const Dropout& dropout, int64_t first, int64_t count, float* buffer) {
  const uint32_t threshold = dropout_threshold(dropout.probability);
  const float kept = 1.0f / (1.0f - dropout.probability);
  const int64_t block = first / 4, blocks = (first + count + 3) / 4 - block;
  for (int64_t i = 0; i < blocks; ++i) {
    const PhiloxWords words = philox4x32(static_cast<uint64_t>(block + i), dropout.site, dropout.seed);
    for (int k = 0; k < 4; ++k) buffer[4 * i + k] = words.w[k] >= threshold ? kept : 0.0f;
  }
  return buffer + first % 4;
}

// Global index of column 0 of row r of an activation [s, b, width].
inline int64_t dropout_row_index(const Dropout& dropout, int64_t r, int64_t b, int64_t width) {
  return ((dropout.first_sample + r % b) * dropout.seq_length + dropout.first_position + r / b) * width;
}

// Calls f(c, scale) for each column c of a row, by which the column's value is to be multiplied: always 1, and nothing
// drawn, where the probability is 0. f is inlined into a vector loop.
template <class F>
inline void dropout_row(const Dropout& dropout, int64_t row_index, int64_t width, const F& f) {
  if (dropout.probability == 0) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) f(c, 1.0f);
    return;
  }
  float buffer[kDropoutChunk + 8];
  for (int64_t begin = 0; begin < width; begin += kDropoutChunk) {
    const int64_t count = std::min(kDropoutChunk, width - begin);
    const float* const scale = dropout_scales(dropout, row_index + begin, count, buffer);
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) f(begin + c, scale[c]);
  }
}

}  // namespace trivet
