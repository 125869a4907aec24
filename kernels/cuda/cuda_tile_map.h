// Tensor maps: what the tensor memory accelerator of a GPU is told of a tensor (ptx_hopper.cuh copies by them).
#pragma once

#include <cstdint>
#include <cuda.h>

namespace trivet {

// bf16 [rows, matrices, columns], dense, of which a copy takes `box_rows` rows of one matrix and `box_columns` columns,
// 32 or 64, and swizzles a row's bytes. `data` is aligned to 16 bytes, and columns are a multiple of 8.
CUtensorMap make_tile_map(const void* data, int64_t rows, int64_t matrices, int64_t columns, int box_rows,
                          int box_columns);

}  // namespace trivet
