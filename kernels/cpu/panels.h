// Panels: the operands of the CPU's GEMMs, packed. A panel is 32 rows of the left matrix or 32 columns of the right
// one, in steps of 32 along k; elements outside the matrix are zero, so kernels have no edge cases.
//
// Two types have the same members: F32Panels (panels_f32.h), vectors of any instruction set, and AmxPanels
// (panels_amx.h), bf16 on the tile unit of newer x86 servers. GEMM and attention are templates over them.
//
//   Element                               float or bf16: what a panel is made of
//   pack_rows<side>(from, ld, rows, k, to)     packs rows r < min(rows, 32), all k, of (r, k) = from[r * ld + k]
//   pack_columns<side>(from, ld, rows, k, to)  the same of (r, k) = from[k * ld + r]
//   multiply<accumulate>(a, b, steps, c)  c = or += a b, for a left and a right panel over so many steps
//   put_left(row, x, to)                  k = 0…31 of row `row` into a step of a left panel
//   put_right(pair, x, y, to)             columns 0…31 of k = 2 pair and 2 pair + 1 into a step of a right panel
//   Session                               lives in each thread while it multiplies
//
// c is a block: [32, 32] fp32, contiguous.
#pragma once

#include "kernels/cpu/vector.h"

namespace trivet {

inline constexpr int64_t kPanel = 32;               // rows or columns of a panel, and k of a step
inline constexpr int64_t kBlock = kPanel * kPanel;  // elements of a step, and of a block
constexpr int64_t panels_of(int64_t n) { return (n + kPanel - 1) / kPanel; }

enum class Side { left, right };

// 32 floats: a row of a block.
struct PanelRow {
  static constexpr int64_t kVectors = kPanel / kLanes;
  Floats v[kVectors];
};

inline Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)  // one instruction, of which GCC 12 makes two
  return _mm512_maskz_max_ps(kAllLanes, a, b);
#else
  return a > b ? a : b;
#endif
}

// x[i][j] becomes x[j][i], for 32-bit elements: each round deals the elements of the first half of the rows and of the
// second out in turn, as one riffles cards.
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

}  // namespace trivet
