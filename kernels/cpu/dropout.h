// Dropout masks on the CPU for runs of consecutive elements, as specified by trivet::Dropout (kernels/layer_ops.h).
#pragma once

#include <algorithm>

#include "base/piece.h"
#include "kernels/cpu/vector.h"
#include "kernels/ops.h"
#include "kernels/philox.h"

namespace trivet::TRIVET_CPU {

// Elements that are drawn together, into a buffer on the stack.
inline constexpr int64_t kDropoutChunk = piece(512, 64);

// Philox for kCounters consecutive counters in parallel, each in a 64-bit lane whose upper half is ignored.
using Words = uint64_t __attribute__((vector_size(kVectorBytes)));
inline constexpr int kCounters = kVectorBytes / 8;

// The products of the lanes' lower halves with m.
inline Words multiply_lower(Words x, uint32_t m) {
#if defined(__AVX512F__)  // one instruction; GCC would multiply 64 by 64 bits
  return std::bit_cast<Words>(_mm512_maskz_mul_epu32(0xff, std::bit_cast<__m512i>(x), _mm512_set1_epi64(m)));
#elif defined(__AVX2__)
  return std::bit_cast<Words>(_mm256_mul_epu32(std::bit_cast<__m256i>(x), _mm256_set1_epi64x(m)));
#elif defined(__SSE2__)
  return std::bit_cast<Words>(_mm_mul_epu32(std::bit_cast<__m128i>(x), _mm_set1_epi64x(m)));
#else
  return (x & 0xffffffffu) * m;
#endif
}

struct FourWords {
  Words w[4];
};
// Only the lower halves of the words.
using NarrowWords = uint32_t __attribute__((vector_size(kVectorBytes / 2)));
using NarrowFloats = float __attribute__((vector_size(kVectorBytes / 2)));
inline NarrowWords narrow(Words x) { return __builtin_convertvector(x, NarrowWords); }

template <int... lane>
inline Words lane_numbers(std::integer_sequence<int, lane...>) {
  return Words{static_cast<uint64_t>(lane)...};
}
// a0 b0 a1 b1 …, starting at lane `first` of each.
template <int first, int... lane>
inline Words interleave(Words a, Words b, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(a, b, (first + lane / 2 + lane % 2 * kCounters)...);
}

inline FourWords philox_vector(uint64_t first_counter, uint64_t counter_high, uint64_t key) {
  const Words counter = first_counter + lane_numbers(std::make_integer_sequence<int, kCounters>());
  Words c0 = counter, c1 = counter >> 32, c2 = Words{} + counter_high, c3 = Words{} + (counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kDropoutRounds; ++round) {
    const Words p0 = multiply_lower(c0, 0xD2511F53u), p1 = multiply_lower(c2, 0xCD9E8D57u);
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c1 = p1;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The factors of elements [first, first + count) by global index: 0 if dropped, 1 / (1 - probability) if kept. Returns
// where they start in `buffer`, which has room for count + kDropoutSlack.
inline constexpr int64_t kDropoutSlack = 4 * kCounters + 4;
inline const float* dropout_scales(const Dropout& dropout, int64_t first, int64_t count, float* buffer) {
  const uint32_t threshold = dropout_threshold(dropout.probability);
  const float kept = 1.0f / (1.0f - dropout.probability);
  const int64_t block = first / 4, blocks = (first + count + 3) / 4 - block;
  for (int64_t i = 0; i < blocks; i += kCounters) {
    const FourWords words = philox_vector(static_cast<uint64_t>(block + i), dropout.site, dropout.seed);
    // Each counter's words 0 and 1 side by side, and its words 2 and 3; then counter after counter.
    const Words first_two = (words.w[0] & 0xffffffffu) | (words.w[1] << 32);
    const Words last_two = (words.w[2] & 0xffffffffu) | (words.w[3] << 32);
    constexpr auto kAll = std::make_integer_sequence<int, kCounters>();
    const Words ordered[] = {interleave<0>(first_two, last_two, kAll),
                             interleave<kCounters / 2>(first_two, last_two, kAll)};
    for (int half = 0; half < 2; ++half) {
      const Floats scale = std::bit_cast<Bits>(ordered[half]) >= threshold ? Floats{} + kept : Floats{};
      store(buffer + 4 * i + half * kLanes, scale);
    }
  }
  return buffer + first % 4;
}

// Global index of column 0 of row r of an activation [s, b, width]; 0 if nothing is drawn.
inline int64_t dropout_row_index(const Dropout& dropout, int64_t r, int64_t b, int64_t width) {
  if (dropout.probability == 0) return 0;
  const int64_t sample = *dropout.first_sample.as<int64_t>() + r % b;
  return (sample * dropout.seq_length + dropout.positions.at(r / b)) * width;
}

// Calls f(at, scale) for each vector of a row's columns; f multiplies their values by `scale`. If the probability is 0,
// `scale` is always 1 and nothing is drawn.
template <class F>
inline void dropout_row(const Dropout& dropout, int64_t row_index, int64_t width, const F& f) {
  if (dropout.probability == 0) {
    for_vectors(width, [&](auto at) { f(at, 1.0f); });
    return;
  }
  float buffer[kDropoutChunk + kDropoutSlack];
  for (int64_t begin = 0; begin < width; begin += kDropoutChunk) {
    const int64_t count = std::min(kDropoutChunk, width - begin);
    const float* const scale = dropout_scales(dropout, row_index + begin, count, buffer);
    for_vectors(count, [&](auto at) { f(at.moved_by(begin), at.load(scale)); });
  }
}

}  // namespace trivet::TRIVET_CPU
