// The gradient norm: an exact sum of squares (kernels/exact_sum.h), and the clipping scale derived from it.
//
// Squares of fp32 are exact in double. Blocks that fit the L1 cache are summed in doubles without rounding, by
// splitting the squares at a few bit positions: with an anchor S = 1.5 * 2^52 * q, the sum S + r is a multiple of q,
// its gain over S is the part of r above q, and the remainder of r is exact too (Rump, Ogita, Oishi 2008). The running
// sum is its own anchor. Each lane's gain is an integer multiple of q, and is added to the 64-bit bins once per block.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector.h"
#include "kernels/exact_sum.h"

namespace trivet::TRIVET_CPU {
namespace {

using Bins = std::array<int64_t, kExactSumBins>;
using Doubles = double __attribute__((vector_size(kVectorBytes)));
using HalfFloats = float __attribute__((vector_size(kVectorBytes / 2)));
using Int64s = int64_t __attribute__((vector_size(kVectorBytes)));

// A block's elements are distributed over 32 lanes, kSums vectors of kWidth.
constexpr int64_t kElements = 1024, kWidth = kVectorBytes / 8, kSums = 32 / kWidth;
// A lane adds 32 parts of up to 2^45 q, so its sum moves by at most 2^50 q: less than the 2^51 q to the next power
// of two on either side of the anchor.
constexpr int kLevelBits = 45;
// Remainders of a level, at most q / 2 each, are added without a split if all 1024 together stay below 2^56 units:
// a lane's 32 then fit a double's 53 bits.
constexpr int kRestBits = 45;

// 2^exponent. REQUIRES: a normal number.
double power_of_two(int exponent) { return std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52); }

// The squares of kWidth elements.
inline Doubles squares_at(const float* x) {
  HalfFloats narrow;
  std::memcpy(&narrow, x, sizeof narrow);
  const Doubles wide = __builtin_convertvector(narrow, Doubles);
  return wide * wide;
}

// bins += the lanes' sums, which are `anchor` too large, and multiples of 2^exponent.
void flush(const Doubles (&sums)[kSums], double anchor, int exponent, Bins& bins) {
  int64_t total = 0;
  for (const Doubles& sum : sums) {
    const Int64s units = __builtin_convertvector((sum - anchor) * power_of_two(-exponent), Int64s);
    for (int lane = 0; lane < kWidth; ++lane) total += units[lane];
  }
  exact_add(bins.data(), total, exponent);
}

// bins += the squares of a block, all of which are less than 2^top and multiples of 2^bottom.
void add_block(const float* x, int top, int bottom, Bins& bins) {
  int exponent = top - kLevelBits;
  const double anchor = 1.5 * power_of_two(52 + exponent);
  Doubles high[kSums], low[kSums] = {};
  for (Doubles& sum : high) sum = Doubles{} + anchor;
  int bound = exponent - 1;  // |rest| <= 2^bound
  if (bound - bottom <= kRestBits) {
    for (int64_t i = 0; i < kElements; i += kSums * kWidth) {
      // Prefetches the next block while this one, in the cache, is summed.
      for (int64_t line = 0; line < kSums * kWidth; line += 16) __builtin_prefetch(x + kElements + i + line);
      for (int64_t k = 0; k < kSums; ++k) low[k] += cut_at_anchor(high[k], squares_at(x + i + k * kWidth));
    }
    flush(high, anchor, exponent, bins);
    flush(low, 0, bottom, bins);
    return;
  }
  // Widely differing magnitudes in one block: split level by level.
  Doubles rest[kElements / kWidth];
  for (int64_t i = 0; i < kElements / kWidth; ++i) rest[i] = cut_at_anchor(high[i % kSums], squares_at(x + i * kWidth));
  flush(high, anchor, exponent, bins);
  for (; bound - bottom > kRestBits; bound = exponent - 1) {
    exponent = bound - kLevelBits;
    const double next_anchor = 1.5 * power_of_two(52 + exponent);
    for (Doubles& sum : high) sum = Doubles{} + next_anchor;
    for (int64_t i = 0; i < kElements / kWidth; ++i) rest[i] = cut_at_anchor(high[i % kSums], rest[i]);
    flush(high, next_anchor, exponent, bins);
  }
  for (int64_t i = 0; i < kElements / kWidth; ++i) low[i % kSums] += rest[i];
  flush(low, 0, bottom, bins);
}

void add_squares(const float* x, Bins& bins) {
  uint32_t largest = 0, smallest = ~0u;  // of the magnitudes' bits; the smallest minus 1, so that 0 does not count
  for (int64_t i = 0; i < kElements; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    largest = std::max(largest, magnitude);
    smallest = std::min(smallest, magnitude - 1);
  }
  if (largest == 0) return;
  if (largest >= 0x7f800000u) {
    for (int64_t i = 0; i < kElements; ++i) exact_add_square(bins.data(), x[i]);
    return;
  }
  const int largest_field = static_cast<int>(largest >> 23);
  const int smallest_field = std::max(1, static_cast<int>((smallest + 1) >> 23));
  add_block(x, 2 * (largest_field - 126), 2 * (smallest_field - 150), bins);
}

}  // namespace

void Kernels::compute(const op::SumOfSquares& op) {
  int64_t* const total = op.bins.as<int64_t>();
  const auto size = [&](size_t i) { return op.xs[i].numel(); };
  int64_t n = 0;
  for (size_t i = 0; i < op.xs.size(); ++i) n += size(i);
  parallel_for(threads_, n, 16 * kElements, [&](Range part, int) {
    Bins local{};
    for_slices(op.xs.size(), size, part, [&](size_t x, Range range) {
      const float* const data = op.xs[x].as<float>();
      int64_t i = range.begin;
      for (; i + kElements <= range.end; i += kElements) add_squares(data + i, local);
      if (i < range.end) {
        float padded[kElements] = {};
        std::copy(data + i, data + range.end, padded);
        add_squares(padded, local);
      }
    });
    // The bins are integers, so the order of the threads does not matter.
    for (size_t k = 0; k < local.size(); ++k) std::atomic_ref(total[k]).fetch_add(local[k], std::memory_order_relaxed);
  });
  exact_canonicalize(total);
}

void Kernels::compute(const op::ClipScale& op) {
  const double value = op.multiplier * std::sqrt(exact_total(op.bins.as<int64_t>()));
  op.norm.as<float>()[0] = static_cast<float>(value);
  op.grad_scale.as<float>()[0] = clipped(op.multiplier, op.max_norm, value);
}

void Kernels::compute(const op::CountLabels& op) {
  const double share = counted_share(op.missing.as<float>()[0], static_cast<double>(op.labels));
  for (int64_t i = 0; i < op.numbers.numel(); ++i) {
    float& number = op.numbers.as<float>()[i];
    number = static_cast<float>(share * number);
  }
  op.grad_scale.as<float>()[0] = clipped(share, op.max_norm, share * op.norm.as<float>()[0]);
}

}  // namespace trivet::TRIVET_CPU
