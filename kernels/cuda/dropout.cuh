// Dropout masks on the GPU: the contract of trivet::Dropout (kernels/layer_ops.h), one pack at a time.
#pragma once

#include "kernels/cuda/pack.cuh"
#include "kernels/ops.h"
#include "kernels/philox.h"

namespace trivet {

// A Dropout in the form that kernels use.
struct DropoutArgs : Dropout {
  bool active;
  uint32_t threshold;
  float kept;  // 1 / (1 - probability)

  explicit DropoutArgs(const Dropout& d)
      : Dropout(d),
        active(d.probability > 0),
        threshold(dropout_threshold(d.probability)),
        kept(1.0f / (1.0f - d.probability)) {}

  __device__ int64_t sample(int64_t entry) const { return *static_cast<const int64_t*>(first_sample.data) + entry; }

  // Global index of column 0 of row r of an activation [s, b, width].
  __device__ int64_t row_index(int64_t r, int64_t b, int64_t width) const {
    return (sample(r % b) * seq_length + positions.at(r / b)) * width;
  }

  // The factors of the eight elements from `column` on in row r of an activation [s, b, width]; all 1 without dropout.
  __device__ Pack scales(int64_t r, int64_t b, int64_t width, int64_t column) const {
    Pack pack;
    if (!active) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) pack.v[k] = 1.0f;
      return pack;
    }
    const int64_t index = row_index(r, b, width) + column;
    // The words of the elements lie in two or three blocks of four.
    uint32_t w[12] = {};
    const uint64_t block = static_cast<uint64_t>(index) / 4;
    const bool by_one = index & 1, by_two = index & 2;
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      if (j == 2 && !by_one && !by_two) break;
      const PhiloxWords words = philox4x32<kDropoutRounds>(block + j, site, seed);
#pragma unroll
      for (int k = 0; k < 4; ++k) w[4 * j + k] = words.w[k];
    }
    // Shifts the words down by index % 4, with constant indices only, so that they stay in registers.
#pragma unroll
    for (int k = 0; k < 11; ++k) w[k] = by_one ? w[k + 1] : w[k];
#pragma unroll
    for (int k = 0; k < 10; ++k) w[k] = by_two ? w[k + 2] : w[k];
#pragma unroll
    for (int k = 0; k < kPack; ++k) pack.v[k] = w[k] >= threshold ? kept : 0.0f;
    return pack;
  }
};

}  // namespace trivet
