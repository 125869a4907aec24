// FP8: the largest magnitude of a tensor, and its values on the grid of a format.
#include "kernels/base/fp8.h"

#include <atomic>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel_for.h"

namespace trivet::TRIVET_CPU {
namespace {

constexpr int64_t kFp8Grain = 16384;  // elements worth a thread

// The largest magnitude's bits: magnitudes are in the order of their bits, and NaN is beyond infinity.
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

// Values, not references: bytes that are written may be anything, so the compiler would read those again each time.
template <class Format, class T>
void encode(const T* __restrict from, uint8_t* __restrict to, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) to[i] = Format::encode(static_cast<float>(from[i]) * scale);
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
    const float scale = Format::scale_for(op.amax.as<float>()[0]);
    op.scale.as<float>()[0] = 1 / scale;
    uint8_t* const to = static_cast<uint8_t*>(op.values.data);
    dispatch_float(op.x.dtype, [&]<class T>() {
      const T* const from = op.x.as<T>();
      parallel_for(threads_, op.x.numel(), kFp8Grain, [&](Range part, int) {
        encode<Format>(from + part.begin, to + part.begin, part.size(), scale);
      });
    });
  });
}

}  // namespace trivet::TRIVET_CPU
