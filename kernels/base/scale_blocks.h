// ScaleBlocks: which elements of an FP8 matrix share a scale (DeepSeek-V3 2024, section 3.3.2): 1 x 128 blocks if a
// GEMM sums over columns, 128 x 1 if over rows, and 128 x 128 for a weight, as GEMMs sum over both.
//
// The shape of the scales determines the blocks. [1]: one scale for all. [g, p, q]: the rows form g groups of equal
// size (parts of a gathered tensor, or weights side by side), each of p x q blocks: p is the group's number of rows or
// 1/128 of it, q the same for columns. Both are rounded up, so a group's last blocks may have fewer rows or columns.
#pragma once

#include <algorithm>

#include "kernels/base/tensor.h"

namespace trivet {

struct ScaleBlocks {
  static constexpr int64_t kSize = 128;
  static constexpr int64_t count(int64_t n) { return (n + kSize - 1) / kSize; }  // blocks in n rows or columns

  static bool given(const Tensor& scale) { return scale.shape.rank == 3; }
  static bool fit(const Tensor& scale, const Tensor& values) {
    const int64_t groups = scale.shape[0], group = groups > 0 ? values.rows() / groups : 0, n = values.cols();
    const auto is_of = [](int64_t blocks, int64_t length) { return blocks == length || blocks == count(length); };
    return groups * group == values.rows() && is_of(scale.shape[1], group) && is_of(scale.shape[2], n);
  }
  // True if the blocks begin at multiples of their size from the first row, and not just from that of their group.
  static bool aligned(const Tensor& scale, const Tensor& values) {
    return scale.shape[0] == 1 || values.rows() / scale.shape[0] % kSize == 0;
  }
  // REQUIRES: fit(scale, values) if given, and that there are elements.
  ScaleBlocks(const Tensor& scale, const Tensor& values)
      : group(given(scale) ? values.rows() / scale.shape[0] : values.rows()),
        down(given(scale) ? scale.shape[1] : 1),
        across(scale.cols()),
        rows(!given(scale)   ? group
             : down == group ? 1
                             : kSize),
        columns(!given(scale)             ? values.cols()
                : across == values.cols() ? 1
                                          : kSize) {}
  // The matrix rows that row i of the scales, [g p, q], covers.
  TRIVET_HOST_DEVICE int64_t first_row(int64_t i) const { return i / down * group + i % down * rows; }
  TRIVET_HOST_DEVICE int64_t row_count(int64_t i) const { return std::min(rows, group - i % down * rows); }
  // The place of an element's scale.
  TRIVET_HOST_DEVICE int64_t index(int64_t row, int64_t column) const {
    return (row / group * down + row % group / rows) * across + column / columns;
  }

  int64_t group, down, across;  // rows per group, blocks down a group, and blocks in a row
  int64_t rows, columns;        // per block
};

}  // namespace trivet
