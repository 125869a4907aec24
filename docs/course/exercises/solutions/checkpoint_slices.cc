#include "docs/course/exercises/checkpoint_slices.h"

#include <algorithm>

namespace trivet::exercise {

void copy_overlap(const Box& from, std::span<const float> saved, const Box& to, std::span<float> wanted) {
  const int64_t end_row = std::min(from.row + from.rows, to.row + to.rows);
  const int64_t end_col = std::min(from.col + from.cols, to.col + to.cols);
  for (int64_t row = std::max(from.row, to.row); row < end_row; ++row)
    for (int64_t col = std::max(from.col, to.col); col < end_col; ++col)
      wanted[static_cast<size_t>((row - to.row) * to.cols + col - to.col)] =
          saved[static_cast<size_t>((row - from.row) * from.cols + col - from.col)];
}

}  // namespace trivet::exercise
