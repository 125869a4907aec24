// Panels: the operands of the CPU's GEMMs, packed. A panel is 32 rows of the left matrix or 32 columns of the right
// one, in steps of 32 along k; elements outside the matrix are zero, so kernels have no edge cases.
//
// Three types have the same members: F32Panels (panels_f32.h) for vectors of any instruction set and, for bf16 in pairs
// of k, DotPanels with AVX-512-BF16 (panels_bf16.h) and AmxPanels with the tile unit of x86 servers (panels_amx.h).
// GEMM and attention are templates over them.
//
//   Element                               float or bf16: the element type of a panel
//   pack_rows<side>(from, ld, rows, k, to)     packs rows r < min(rows, 32), all k, of (r, k) = from[r * ld + k]
//   pack_columns<side>(from, ld, rows, k, to)  the same of (r, k) = from[k * ld + r]
//   multiply<accumulate>(a, b, steps, c, rows)  c = or += a b, for a left and a right panel over `steps`; rows
//                                         from `rows` on (default: 32) may be left out
//   put_left(row, x, to)                  k = 0…31 of row `row` into a step of a left panel
//   put_right(pair, x, y, to)             columns 0…31 of k = 2 pair and 2 pair + 1 into a step of a right panel
//   Session                               lives in each thread while it multiplies
//   kSliceSteps                           how deep a slice of a right panel a GEMM multiplies at a time
//
// c is a block: [32, 32] fp32, contiguous. Its elements are sums in the order of k: they continue from c's values,
// so their bits do not depend on how k is split over calls.
#pragma once

#include <limits>

#include "kernels/cpu/vector.h"

namespace trivet::TRIVET_CPU {

inline constexpr int64_t kPanel = 32;               // rows or columns of a panel, and k of a step
inline constexpr int64_t kBlock = kPanel * kPanel;  // elements of a step, and of a block
constexpr int64_t panels_of(int64_t n) { return (n + kPanel - 1) / kPanel; }

enum class Side { left, right };

inline constexpr int64_t kWholeBlock = std::numeric_limits<int64_t>::max();  // as kSliceSteps: no slices

// 32 floats: a row of a block.
struct PanelRow {
  static constexpr int64_t kVectors = kPanel / kLanes;
  Floats v[kVectors];
};

// For functions, and after the parameters of lambdas, whose arrays must be kept in registers.
#define TRIVET_INLINE __attribute__((always_inline))
// For functions that need all registers: inlined, they would find some taken and spill sums to memory.
#define TRIVET_NOINLINE __attribute__((noinline))

// Calls f(i) for constant i = 0…n - 1, so that arrays indexed by i can be registers at any optimization level.
template <int n, class F>
TRIVET_INLINE inline void unrolled(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) TRIVET_INLINE { (f(std::integral_constant<int, i>()), ...); }
  (std::make_integer_sequence<int, n>());
}

// Calls f<size>(first) for groups of a block's rows until they cover the first `rows`: a group's sums, two vectors of
// columns per row, fill the registers. A single row, as in generation, is a group of its own.
template <class F>
inline void for_row_groups(int64_t rows, const F& f) {
  if (rows == 1) return f.template operator()<1>(0);
  const auto group = [&]<int size>(int64_t first) {
    if (first < rows) f.template operator()<size>(first);
  };
#if defined(__AVX512F__) || defined(__aarch64__)  // 32 vector registers
  group.template operator()<12>(0);
  group.template operator()<12>(12);
  group.template operator()<8>(24);
#else  // 16; four rows hide the latency of two multiply-adds per cycle, two would not
  group.template operator()<6>(0);
  group.template operator()<6>(6);
  group.template operator()<6>(12);
  group.template operator()<6>(18);
  group.template operator()<4>(24);
  group.template operator()<4>(28);
#endif
}

// Calls body(sums) with the first rows and two vectors of columns of the block part at c in registers: Floats[rows][2],
// loaded from c or zero. Stores its results to c.
template <bool accumulate, int rows, class Body>
TRIVET_INLINE inline void with_sums(float* c, const Body& body) {
  Floats sums[rows][2];
  unrolled<rows>([&](auto i) TRIVET_INLINE {
    unrolled<2>([&](auto j) TRIVET_INLINE { sums[i][j] = accumulate ? load(c + i * kPanel + j * kLanes) : Floats{}; });
  });
  body(sums);
  unrolled<rows>([&](auto i) TRIVET_INLINE {
    unrolled<2>([&](auto j) TRIVET_INLINE { store(c + i * kPanel + j * kLanes, sums[i][j]); });
  });
}

// x[i][j] becomes x[j][i], for 32-bit elements: each round interleaves the elements of the first and the second half of
// the rows, like a riffle shuffle.
inline void transpose(Bits (&x)[kLanes]) {
  const auto riffle = []<int... i>(Bits a, Bits b, int half, std::integer_sequence<int, i...>) {
    return half == 0 ? __builtin_shufflevector(a, b, (i % 2 * kLanes + i / 2)...)
                     : __builtin_shufflevector(a, b, (i % 2 * kLanes + i / 2 + kLanes / 2)...);
  };
  constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
  for (int round = 1; round < kLanes; round *= 2) {
    Bits y[kLanes];
    for (int i = 0; i < kLanes; ++i) y[i] = riffle(x[i / 2], x[i / 2 + kLanes / 2], i % 2, kAll);
    std::copy_n(y, kLanes, x);
  }
}

// to[j][i] = from[i][j] for a block whose rows are ld apart.
template <class T>
void transpose_block(const T* from, int64_t ld, float* to) {
  for (int64_t i = 0; i < kPanel; i += kLanes)
    for (int64_t j = 0; j < kPanel; j += kLanes) {
      Bits x[kLanes];
      for (int64_t r = 0; r < kLanes; ++r) x[r] = std::bit_cast<Bits>(load(from + (i + r) * ld + j));
      transpose(x);
      for (int64_t r = 0; r < kLanes; ++r) store(to + (j + r) * kPanel + i, std::bit_cast<Floats>(x[r]));
    }
}

}  // namespace trivet::TRIVET_CPU
