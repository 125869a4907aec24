// checkpoint_slices: chapter 14, 35 minutes
//
// A weight was saved by ranks that each had a box of its rows and columns, and is loaded by ranks that want other
// boxes: one run was tensor-parallel over columns, the next over rows. Copy the overlap of one saved and one wanted box
// into the wanted one. A loader calls this for every saved box, and reads only the overlaps.
#pragma once

#include <cstdint>
#include <span>

namespace trivet::exercise {

struct Box {  // of the whole weight
  int64_t row, rows, col, cols;
};

// saved: [from.rows, from.cols], wanted: [to.rows, to.cols]. Elements of `wanted` outside `from` keep their values.
void copy_overlap(const Box& from, std::span<const float> saved, const Box& to, std::span<float> wanted);

}  // namespace trivet::exercise

// Hints
//   1. In rows and in columns, the overlap runs from the larger start to the smaller end, and can be empty.
//   2. Row r of the whole weight is row r - from.row of the saved box, and r - to.row of the wanted one.
//   3. Each box has its own row length.
// In the engine: engine/checkpoint/slice.h:for_each_run, where a box can also be cut by a sharded optimizer.
