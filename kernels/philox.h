// Philox4x32, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2,
// 3" (SC'11): four random words as a pure function of a 128-bit counter and a 64-bit key. Dropout and the
// initialisation of weights draw from it by global index, so every layout and every device sees the same numbers.
#pragma once

#include "kernels/base/dtype.h"

namespace trivet {

struct PhiloxWords {
  uint32_t w[4];
};

template <int kRounds = 10>
TRIVET_HOST_DEVICE inline PhiloxWords philox4x32(uint64_t counter_low, uint64_t counter_high, uint64_t key) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Dropout draws four elements from a block of words, by the rules in kernels/layer_ops.h. Seven is the smallest number
// of rounds that passes all BigCrush tests (the paper's section 4.3 and table 2). On GPUs, where masks are recomputed
// wherever they are needed, the rounds are the cost of dropout.
inline constexpr int kDropoutRounds = 7;

// An element is kept when its word is at least this, for a dropout of probability p.
TRIVET_HOST_DEVICE inline uint32_t dropout_threshold(float p) {
  return static_cast<uint32_t>(static_cast<double>(p) * 4294967296.0);
}

// In attention, the probabilities of two queries and two keys (a square) share a block of words: those at positions x
// and x + 8 of each 16. So a lane of a GPU's tensor cores holds all four of a square among its sums, whether rows are
// queries or keys. The index of a position's pair, and the number of pairs in a sequence of length s:
TRIVET_HOST_DEVICE inline int64_t dropout_pair(int64_t position) { return position / 16 * 8 + position % 8; }
TRIVET_HOST_DEVICE inline int64_t dropout_pairs(int64_t s) { return (s + 15) / 16 * 8; }

}  // namespace trivet
