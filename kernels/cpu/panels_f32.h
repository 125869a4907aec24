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
    pack<side == Side::left>(from, ld, 1, std::min(rows, kPanel), k, to);
  }
  template <Side side, class T>
  static void pack_columns(const T* from, int64_t ld, int64_t rows, int64_t k, float* to) {
    pack<side == Side::left>(from, 1, ld, std::min(rows, kPanel), k, to);
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

  template <bool rows_first, class T>
  static void pack(const T* from, int64_t row_stride, int64_t k_stride, int64_t rows, int64_t k, float* to) {
    for (int64_t k0 = 0; k0 < k; k0 += kPanel, to += kBlock)
      for (int64_t i = 0; i < kPanel; ++i)
        for (int64_t j = 0; j < kPanel; ++j) {
          const int64_t row = rows_first ? i : j, at = k0 + (rows_first ? j : i);
          to[i * kPanel + j] = row < rows && at < k ? static_cast<float>(from[row * row_stride + at * k_stride]) : 0;
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
