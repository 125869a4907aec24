// Slice: the elements of one model tensor that a memory region or a part of a file holds.
//
// Tensor parallelism gives a rank a box of rows and columns; a sharded optimizer splits the elements of the box, in
// row-major order, into ranges. So a slice is a range of a box, and a checkpoint of any layout loads into any other by
// intersecting stored and wanted slices. Vocabulary padding rows, which depend on the layout, are in no slice.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/tensor.h"

namespace trivet {

struct Slice {
  Shape global;               // of the whole tensor, one or two dimensions
  int64_t row = 0, rows = 1;  // the box; a vector is one row
  int64_t col = 0, cols = 0;
  int64_t first = 0, count = 0;  // the range, in elements of the box
  bool operator==(const Slice&) const = default;

  bool whole_box() const { return first == 0 && count == rows * cols; }
  // Columns and rows of `global`, viewed as a matrix.
  int64_t global_cols() const { return global[-1]; }
  int64_t global_rows() const { return global.rank == 2 ? global[0] : 1; }
};

// The whole parameter of this shape; of three dimensions, the last two are flattened into the columns.
inline Slice whole_slice(const Shape& shape) {
  const bool vector = shape.rank == 1;
  const int64_t rows = vector ? 1 : shape[0], cols = shape.numel() / rows;
  return {.global = vector ? shape : Shape{rows, cols}, .rows = rows, .cols = cols, .count = shape.numel()};
}

// Calls f(from_offset, to_offset, n) for each run of elements that is contiguous in both slices of a tensor, in
// ascending order; each offset is relative to its slice's first element.
template <class F>
void for_each_run(const Slice& from, const Slice& to, F&& f) {
  if (from.count == 0 || to.count == 0) return;
  if (from.col == to.col && from.cols == to.cols) {  // same columns: one contiguous run
    const int64_t from_first = from.row * from.cols + from.first, to_first = to.row * to.cols + to.first;
    const int64_t begin = std::max(from_first, to_first);
    const int64_t end = std::min(from_first + from.count, to_first + to.count);
    if (begin < end) f(begin - from_first, begin - to_first, end - begin);
    return;
  }
  const auto first_row = [](const Slice& s) { return s.row + s.first / s.cols; };
  const auto end_row = [](const Slice& s) { return s.row + (s.first + s.count - 1) / s.cols + 1; };
  for (int64_t r = std::max(first_row(from), first_row(to)); r < std::min(end_row(from), end_row(to)); ++r) {
    // The offset of row r, column 0 in the slice.
    const int64_t from_zero = (r - from.row) * from.cols - from.col - from.first;
    const int64_t to_zero = (r - to.row) * to.cols - to.col - to.first;
    const int64_t begin = std::max({from.col, to.col, -from_zero, -to_zero});
    const int64_t end = std::min({from.col + from.cols, to.col + to.cols, from.count - from_zero, to.count - to_zero});
    if (begin < end) f(begin + from_zero, begin + to_zero, end - begin);
  }
}

}  // namespace trivet
