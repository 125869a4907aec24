// Vectors whose elements are a function of (rank, index), and the sums over ranks that a communicator must produce.
#pragma once

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/device.h"

namespace trivet {

// The device and stream on which a test's rank computes and communicates.
struct RankStreams {
  std::unique_ptr<Device> device = create_cpu_device();
  std::unique_ptr<Stream> stream = device->create_compute_stream();
};

// first, first + 1, … last; or first, first - 1, … last.
inline std::vector<int> ranks_from(int first, int last) {
  std::vector<int> ranks;
  for (int r = first; r != last; r += first < last ? 1 : -1) ranks.push_back(r);
  ranks.push_back(last);
  return ranks;
}

template <class T>
Tensor tensor_of(std::vector<T>& values) {
  return {values.data(), dtype_of<T>(), {static_cast<int64_t>(values.size())}};
}
template <class T>
Tensor part_of(std::vector<T>& values, int64_t begin, int64_t count) {
  return tensor_of(values).slice(begin, count);
}

inline uint64_t mixed(uint64_t x) {  // splitmix64: every bit of the result depends on every bit of x
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Small integers: sums over a few ranks are exact in every type.
template <class T>
T small_integer(int rank, int64_t i) {
  const auto v = static_cast<int>(mixed(static_cast<uint64_t>(i) * 64 + static_cast<uint64_t>(rank)) % 15) - 7;
  if constexpr (std::is_same_v<T, int64_t>) return v;
  else return T(static_cast<float>(v));
}

// Values of very different magnitudes: summing in another order changes the bits.
template <class T>
T random_value(int rank, int64_t i) {
  const uint64_t bits = mixed((static_cast<uint64_t>(i) << 8) + static_cast<uint64_t>(rank) + 12345);
  if constexpr (std::is_same_v<T, int64_t>) return static_cast<int64_t>(bits >> 4);
  else {
    const float fraction = static_cast<float>(static_cast<int64_t>(bits >> 24) - (int64_t{1} << 39)) * 0x1p-39f;
    return T(fraction * static_cast<float>(1 << (bits % 12)));
  }
}

template <class T, class Value>
std::vector<T> filled(int64_t count, int rank, Value value) {
  std::vector<T> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) x[static_cast<size_t>(i)] = value(rank, i);
  return x;
}

// Element i of the sum over ranks, added in rank order: in fp32 for fp32 and bf16.
template <class T, class Value>
T rank_order_sum(int ranks, int64_t i, Value value) {
  if constexpr (std::is_same_v<T, int64_t>) {
    uint64_t sum = 0;
    for (int r = 0; r < ranks; ++r) sum += static_cast<uint64_t>(value(r, i));
    return static_cast<int64_t>(sum);
  } else {
    float sum = static_cast<float>(value(0, i));
    for (int r = 1; r < ranks; ++r) sum += static_cast<float>(value(r, i));
    return T(sum);
  }
}
template <class T, class Value>
T rank_maximum(int ranks, int64_t i, Value value) {
  T best = value(0, i);
  for (int r = 1; r < ranks; ++r) {
    const T x = value(r, i);
    if constexpr (std::is_same_v<T, int64_t>) best = std::max(best, x);
    else if (static_cast<float>(x) > static_cast<float>(best)) best = x;
  }
  return best;
}

// Compares bit for bit; reports the first element that differs.
template <class T, class Expected>
void expect_elements(const std::vector<T>& found, Expected expected, const std::string& what) {
  for (size_t i = 0; i < found.size(); ++i) {
    const T want = expected(static_cast<int64_t>(i));
    if (std::memcmp(&found[i], &want, sizeof(T)) == 0) continue;
    if constexpr (std::is_same_v<T, bf16>)
      ADD_FAILURE() << what << ": element " << i << " is " << static_cast<float>(found[i]) << ", expected "
                    << static_cast<float>(want);
    else ADD_FAILURE() << what << ": element " << i << " is " << +found[i] << ", expected " << +want;
    return;
  }
}

}  // namespace trivet
