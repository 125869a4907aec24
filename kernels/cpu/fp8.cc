// FP8: the largest magnitude of a tensor (amax), and its quantisation to a format.
#include "kernels/base/fp8.h"

#include <atomic>

#include "base/piece.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel_for.h"

namespace trivet::TRIVET_CPU {
namespace {

constexpr int64_t kFp8Grain = piece(16384, 256);  // fewest elements worth a thread

// The largest magnitude's bits: magnitudes compare as their bits do, with NaN above infinity.
uint32_t largest_bits(const float* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return largest;
}
uint32_t largest_bits(const bf16* x, int64_t n) {
  uint16_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max<uint16_t>(largest, x[i].bits & 0x7fffu);
  return static_cast<uint32_t>(largest) << 16;
}

// Takes values, not references: stores of bytes may alias anything, so the compiler would reload references each time.
template <class Format, class T>
void encode(const T* __restrict from, uint8_t* __restrict to, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) to[i] = Format::encode(static_cast<float>(from[i]) * scale);
}

// Computes the codes of x [rows, n], and the scales [blocks] of its blocks, each of all rows and `columns` columns.
// `scale` first holds the blocks' largest magnitudes, then the factors on x, and finally their inverses.
template <class Format, class T>
void encode_blocks(const T* __restrict x, uint8_t* __restrict to, float* __restrict scale, int64_t blocks,
                   int64_t columns, int64_t rows, int64_t n) {
  std::fill_n(scale, blocks, 0.0f);
  const auto raise = [](float& largest, uint32_t bits) {
    largest = std::bit_cast<float>(std::max(std::bit_cast<uint32_t>(largest), bits));
  };
  for (const T* row = x; row < x + rows * n; row += n)
    if (columns == 1)
      for (int64_t j = 0; j < n; ++j)
        raise(scale[j], std::bit_cast<uint32_t>(static_cast<float>(row[j])) & 0x7fffffffu);
    else
      for (int64_t b = 0; b < blocks; ++b)
        raise(scale[b], largest_bits(row + b * columns, std::min(columns, n - b * columns)));
  for (int64_t b = 0; b < blocks; ++b) scale[b] = Format::scale_for(scale[b]);
  for (int64_t begin = 0; begin < rows * n; begin += n)
    if (columns == 1)
      for (int64_t j = begin; j < begin + n; ++j) to[j] = Format::encode(static_cast<float>(x[j]) * scale[j - begin]);
    else
      for (int64_t b = 0, j = begin; b < blocks; ++b, j += columns)
        encode<Format>(x + j, to + j, std::min(columns, begin + n - j), scale[b]);
  for (int64_t b = 0; b < blocks; ++b) scale[b] = 1 / scale[b];
}

}  // namespace

void Kernels::compute(const op::Amax& op) {
  std::atomic<uint32_t> largest = 0;
  dispatch_float(op.x.dtype, [&]<class T>() {
    parallel_for(threads_, op.x.numel(), kFp8Grain, [&](Range part, int) {
      const uint32_t mine = largest_bits(op.x.as<T>() + part.begin, part.size());
      uint32_t seen = largest.load(std::memory_order_relaxed);
      while (seen < mine && !largest.compare_exchange_weak(seen, mine, std::memory_order_relaxed)) {
      }
    });
  });
  op.amax.as<float>()[0] = std::bit_cast<float>(std::min(largest.load(), 0x7f800000u));
}

void Kernels::compute(const op::Quantize& op) {
  dispatch_fp8(op.values.dtype, [&]<class Format>() {
    uint8_t* const to = static_cast<uint8_t*>(op.values.data);
    dispatch_float(op.x.dtype, [&]<class T>() {
      const T* const from = op.x.as<T>();
      if (!op.amax) {
        if (op.x.numel() == 0) return;
        const ScaleBlocks blocks(op.scale, op.values);
        const int64_t n = op.x.cols(), across = op.scale.cols();
        const int64_t grain = std::max<int64_t>(1, kFp8Grain / (blocks.rows * n));
        return parallel_for(threads_, op.scale.rows(), grain, [&](Range part, int) {
          for (int64_t i = part.begin; i < part.end; ++i)
            encode_blocks<Format>(from + blocks.first_row(i) * n, to + blocks.first_row(i) * n,
                                  op.scale.as<float>() + i * across, across, blocks.columns, blocks.row_count(i), n);
        });
      }
      const float scale = Format::scale_for(op.amax.as<float>()[0]);
      op.scale.as<float>()[0] = 1 / scale;
      parallel_for(threads_, op.x.numel(), kFp8Grain,
                   [&](Range part, int) { encode<Format>(from + part.begin, to + part.begin, part.size(), scale); });
    });
  });
}

}  // namespace trivet::TRIVET_CPU
