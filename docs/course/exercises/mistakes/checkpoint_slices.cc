// The mistake: columns are not clipped to the saved box, but taken as whole rows. It works as long as runs are cut by
// rows.
#include "docs/course/exercises/checkpoint_slices.h"

#include <algorithm>

namespace trivet::exercise {

void copy_overlap(const Box& from, std::span<const float> saved, const Box& to, std::span<float> wanted) {
  const int64_t end_row = std::min(from.row + from.rows, to.row + to.rows), cols = std::min(from.cols, to.cols);
  for (int64_t row = std::max(from.row, to.row); row < end_row; ++row)
    for (int64_t col = 0; col < cols; ++col)
      wanted[static_cast<size_t>((row - to.row) * to.cols + col)] =
          saved[static_cast<size_t>((row - from.row) * from.cols + col)];
}

}  // namespace trivet::exercise
