#include <algorithm>
#include <cstring>

#include "base/piece.h"
#include "parallel/comm/back_end.h"

namespace trivet {
namespace {

// Elements summed at a time: the accumulator stays in the L1 cache, and is written to every output from there.
constexpr int64_t kBlock = piece(1024, 32);

struct Add {
  // Unsigned, so that an int64 sum wraps around instead of overflowing (undefined behaviour).
  int64_t operator()(int64_t a, int64_t b) const {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
  float operator()(float a, float b) const { return a + b; }
};
// Also a sum, which reduce_blocks divides.
struct Average : Add {};
struct Max {
  int64_t operator()(int64_t a, int64_t b) const { return b > a ? b : a; }
  float operator()(float a, float b) const { return b > a || b != b ? b : a; }
};

template <class T, class Accumulator, class Combine>
void reduce_blocks(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t count) {
  const Combine combine;
  Accumulator sum[kBlock];
  T rounded[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(inputs[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<Accumulator>(first[i]);
    for (const void* input : inputs.subspan(1)) {
      const T* x = static_cast<const T*>(input) + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] = combine(sum[i], static_cast<Accumulator>(x[i]));
    }
    if constexpr (std::is_same_v<Combine, Average> && std::is_same_v<Accumulator, float>)
      for (int64_t i = 0; i < n; ++i) sum[i] /= static_cast<float>(inputs.size());
    const void* result = sum;
    if constexpr (!std::is_same_v<T, Accumulator>) {
      for (int64_t i = 0; i < n; ++i) rounded[i] = static_cast<T>(sum[i]);
      result = rounded;
    }
    for (void* output : outputs)
      std::memcpy(static_cast<T*>(output) + begin, result, static_cast<size_t>(n) * sizeof(T));
  }
}

template <class Combine>
void reduce_typed(DType dtype, std::span<const void* const> inputs, std::span<void* const> outputs, int64_t count) {
  switch (dtype) {
    case DType::f32: return reduce_blocks<float, float, Combine>(inputs, outputs, count);
    case DType::bf16: return reduce_blocks<bf16, float, Combine>(inputs, outputs, count);
    case DType::i64: return reduce_blocks<int64_t, int64_t, Combine>(inputs, outputs, count);
    default: fail(std::string("a reduction of ") + name_of(dtype) + "; expected fp32, bf16 or int64");
  }
}

}  // namespace

void reduce_in_rank_order(Reduce op, DType dtype, std::span<const void* const> inputs, std::span<void* const> outputs,
                          int64_t count) {
  check(op != Reduce::average || dtype != DType::i64, "an average of int64");
  switch (op) {
    case Reduce::sum: return reduce_typed<Add>(dtype, inputs, outputs, count);
    case Reduce::max: return reduce_typed<Max>(dtype, inputs, outputs, count);
    case Reduce::average: return reduce_typed<Average>(dtype, inputs, outputs, count);
  }
}

}  // namespace trivet
