// Reproducible permutations: the result of std::shuffle differs between standard libraries.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/philox.h"

namespace trivet {

inline std::vector<uint32_t> in_order(uint32_t n) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

// A permutation of 0 … n-1: a Fisher-Yates shuffle driven by Philox keyed by `seed`; `stream` numbers independent
// permutations. About 10 ns per element while the permutation fits in the caches.
inline std::vector<uint32_t> permutation(uint32_t n, uint64_t seed, uint64_t stream) {
  std::vector<uint32_t> order = in_order(n);
  for (uint64_t i = n; i-- > 1;) {
    const PhiloxWords random = philox4x32(i / 2, stream, seed);
    const uint64_t word = uint64_t{random.w[i % 2 * 2]} << 32 | random.w[i % 2 * 2 + 1];
    // The high half of the product is uniform in [0, i], with a bias below n / 2^64.
    const auto j = static_cast<uint64_t>(static_cast<unsigned __int128>(word) * (i + 1) >> 64);
    std::swap(order[i], order[j]);
  }
  return order;
}

}  // namespace trivet
