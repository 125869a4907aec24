// Tensor maps: descriptions of tensors for the tensor memory accelerator (used by the copies in ptx_hopper.cuh).
#pragma once

#include <cuda.h>

#include "kernels/heads_view.h"

namespace trivet {

// True if the view can have a map: bf16, 16-byte aligned, d % 8 == 0, positions outermost, and all strides multiples of
// d. The view is then [positions, matrices, d], and a matrix holds the rows of one head. Its index is
// entry * TileSteps::entry + group * TileSteps::group + member * TileSteps::member.
bool tile_map_has(const HeadsView& view);
struct TileSteps {
  int entry, group, member;
  explicit TileSteps(const HeadsLayout& z)
      : entry(static_cast<int>(z.entry / z.d)),
        group(static_cast<int>(z.group / z.d)),
        member(static_cast<int>(z.member / z.d)) {}
};

// A map for copying boxes of `box_rows` rows and `box_columns` columns (32 or 64) from one matrix. The copies swizzle
// the bytes of each row. REQUIRES: tile_map_has(view).
CUtensorMap make_tile_map(const HeadsView& view, int box_rows, int box_columns);

}  // namespace trivet
