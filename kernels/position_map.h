// PositionMap: maps the rows of a tensor to positions in a sequence.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/dtype.h"

namespace trivet {

// Consecutive positions with one jump, as in a rank's two chunks of a zigzag partition
// (parallel/context/cut.h).
struct PositionMap {
  int64_t first = 0;            // position of row 0
  int64_t split = 0, jump = 0;  // rows from `split` on are `jump` positions further

  TRIVET_HOST_DEVICE int64_t at(int64_t row) const { return first + row + (row >= split ? jump : 0); }
  // The number of rows before a position. REQUIRES: positions ascend, jump >= 0.
  TRIVET_HOST_DEVICE int64_t before(int64_t position) const {
    const int64_t row = position - first, later = row - jump;
    if (row <= split) return row > 0 ? row : 0;
    return later > split ? later : split;
  }
  // The map of the rows from this one on.
  PositionMap from(int64_t row) const {
    return row >= split ? PositionMap{at(row)} : PositionMap{first + row, split - row, jump};
  }
  // Calls f(row, count, position) for each run of consecutive positions in `rows` rows: one or two.
  template <class F>
  void for_runs(int64_t rows, const F& f) const {
    const int64_t before = jump == 0 ? rows : std::clamp<int64_t>(split, 0, rows);
    if (before > 0) f(int64_t{0}, before, at(0));
    if (before < rows) f(before, rows - before, at(before));
  }
  bool in_steps_of(int64_t step) const { return first % step == 0 && split % step == 0 && jump % step == 0; }
};

}  // namespace trivet
