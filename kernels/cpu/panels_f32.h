// fp32 panels (see panels.h). One step of a left panel is [32 rows, 32 k], of a right panel [32 k, 32 columns].
#pragma once

#include <algorithm>

#include "kernels/cpu/panels.h"

namespace trivet::TRIVET_CPU {

struct F32Panels {
  using Element = float;
  struct Session {};
  static constexpr int64_t kSliceSteps = kWholeBlock;

  template <Side side, class T>
  static void pack_rows(const T* from, int64_t ld, int64_t rows, int64_t k, float* to) {
    for (int64_t k0 = 0; k0 < k; k0 += kPanel, to += kBlock)
      pack_block<side == Side::right>(from + k0, ld, rows, k - k0, to);
  }
  template <Side side, class T>
  static void pack_columns(const T* from, int64_t ld, int64_t rows, int64_t k, float* to) {
    for (int64_t k0 = 0; k0 < k; k0 += kPanel, to += kBlock)
      pack_block<side == Side::left>(from + k0 * ld, ld, k - k0, rows, to);
  }

  template <bool accumulate>
  static void multiply(const float* a, const float* b, int64_t steps, float* c, int64_t rows = kPanel) {
    for (int64_t column = 0; column < kPanel; column += 2 * kLanes)
      for_row_groups(rows, [&]<int size>(int64_t row) TRIVET_NOINLINE {
        with_sums<accumulate, size>(c + row * kPanel + column, [&](auto& sums) TRIVET_INLINE {
          const float *left = a + row * kPanel, *right = b + column;
          for (int64_t step = 0; step < steps; ++step, left += kBlock)
            for (int64_t k = 0; k < kPanel; ++k, right += kPanel) add_products(left + k, right, sums);
        });
      });
  }

  static void put_left(int64_t row, const PanelRow& x, float* to) {
    for (int64_t i = 0; i < PanelRow::kVectors; ++i) store(to + row * kPanel + i * kLanes, x.v[i]);
  }
  static void put_right(int64_t pair, const PanelRow& x, const PanelRow& y, float* to) {
    put_left(2 * pair, x, to);
    put_left(2 * pair + 1, y, to);
  }

 private:
  // Packs one block, [rows, columns] at `from` with leading dimension ld, as stored or transposed, padded with zeros.
  template <bool transposed, class T>
  static void pack_block(const T* from, int64_t ld, int64_t rows, int64_t columns, float* to) {
    if (rows < kPanel || columns < kPanel) {
      for (int64_t i = 0; i < kPanel; ++i)
        for (int64_t j = 0; j < kPanel; ++j)
          to[transposed ? j * kPanel + i : i * kPanel + j] =
              i < rows && j < columns ? static_cast<float>(from[i * ld + j]) : 0;
    } else if constexpr (transposed) {
      transpose_block(from, ld, to);
    } else {
      for (int64_t i = 0; i < kPanel; ++i)
        for (int64_t j = 0; j < kPanel; j += kLanes) store(to + i * kPanel + j, load(from + i * ld + j));
    }
  }

  template <int rows>
  TRIVET_INLINE static void add_products(const float* a, const float* b, Floats (&sums)[rows][2]) {
    const Floats x = load(b), y = load(b + kLanes);
    unrolled<rows>([&](auto i) TRIVET_INLINE {
      const float left = a[i * kPanel];
      sums[i][0] += left * x;
      sums[i][1] += left * y;
    });
  }
};

}  // namespace trivet::TRIVET_CPU
