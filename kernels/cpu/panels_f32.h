// Panels of fp32 (see panels.h). A step of a left panel is [32 rows, 32 k], one of a right panel [32 k, 32 columns].
#pragma once

#include <algorithm>

#include "kernels/cpu/panels.h"

namespace trivet {

struct F32Panels {
  using Element = float;
  struct Session {};

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
  static void multiply(const float* a, const float* b, int64_t steps, float* c) {
    for (int64_t row = 0; row < kPanel; row += kRows)
      multiply_rows<accumulate>(a + row * kPanel, b, steps, c + row * kPanel);
  }

  static void put_left(int64_t row, const PanelRow& x, float* to) {
    for (int64_t i = 0; i < PanelRow::kVectors; ++i) store(to + row * kPanel + i * kLanes, x.v[i]);
  }
  static void put_right(int64_t pair, const PanelRow& x, const PanelRow& y, float* to) {
    put_left(2 * pair, x, to);
    put_left(2 * pair + 1, y, to);
  }

 private:
  // So many rows of sums fit into the registers beside a row of b.
  static constexpr int64_t kVectors = PanelRow::kVectors, kRows = kVectors <= 2 ? 8 : kVectors <= 4 ? 2 : 1;

  // What a matrix of rows x columns has at `from`, ld apart, as it lies or transposed; zero behind its end.
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

  template <bool accumulate>
  static void multiply_rows(const float* a, const float* b, int64_t steps, float* c) {
    Floats sum[kRows][kVectors];
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t j = 0; j < kVectors; ++j) sum[i][j] = accumulate ? load(c + i * kPanel + j * kLanes) : Floats{};
    for (int64_t step = 0; step < steps; ++step, a += kBlock)
      for (int64_t k = 0; k < kPanel; ++k, b += kPanel) {
        Floats row[kVectors];
        for (int64_t j = 0; j < kVectors; ++j) row[j] = load(b + j * kLanes);
        for (int64_t i = 0; i < kRows; ++i)
          for (int64_t j = 0; j < kVectors; ++j) sum[i][j] += a[i * kPanel + k] * row[j];
      }
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t j = 0; j < kVectors; ++j) store(c + i * kPanel + j * kLanes, sum[i][j]);
  }
};

}  // namespace trivet
