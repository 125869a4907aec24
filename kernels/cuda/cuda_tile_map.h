// Tensor maps: descriptions of tensors for the tensor memory accelerator (ptx_hopper.cuh copies by them).
#pragma once

#include <cuda.h>

#include "kernels/heads_view.h"

namespace trivet {

// True if the view has a map: bf16, 16-byte aligned, heads of a multiple of 8 columns, positions outermost, and
// all strides multiples of a head's columns. The view is then [positions, matrices, d], and a matrix the rows of one
// head: number entry * TileSteps::entry + group * TileSteps::group + member * TileSteps::member.
bool tile_map_has(const HeadsView& view);
struct TileSteps {
  int entry, group, member;
  explicit TileSteps(const HeadsLayout& z)
      : entry(static_cast<int>(z.entry / z.d)),
        group(static_cast<int>(z.group / z.d)),
        member(static_cast<int>(z.member / z.d)) {}
};

// A map by which a copy takes `box_rows` rows of one matrix and `box_columns` columns, 32 or 64, and swizzles the bytes
// of a row.
// REQUIRES: tile_map_has.
CUtensorMap make_tile_map(const HeadsView& view, int box_rows, int box_columns);

}  // namespace trivet
