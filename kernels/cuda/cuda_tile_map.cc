#include "kernels/cuda/cuda_tile_map.h"

#include "kernels/base/cuda_device.h"

namespace trivet {
bool tile_map_has(const HeadsView& view) {
  const HeadsLayout& z = view.layout;
  return view.memory.dtype == DType::bf16 && reinterpret_cast<uintptr_t>(view.data()) % 16 == 0 && z.d % 8 == 0 &&
         z.entry % z.d == 0 && z.group % z.d == 0 && z.member % z.d == 0 && z.position % z.d == 0 &&
         z.at(0, z.b - 1, z.heads() - 1) + z.d <= z.position;
}

CUtensorMap make_tile_map(const HeadsView& view, int box_rows, int box_columns) {
  static auto* const encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const HeadsLayout& z = view.layout;
  const int64_t matrices = z.at(0, z.b - 1, z.heads() - 1) / z.d + 1;
  const cuuint64_t size[3] = {static_cast<cuuint64_t>(z.d), static_cast<cuuint64_t>(matrices),
                              static_cast<cuuint64_t>(z.s)};
  const cuuint64_t stride[2] = {size[0] * 2, static_cast<cuuint64_t>(z.position) * 2};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(box_columns), 1, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t each[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, view.data(), size, stride, box, each,
             CU_TENSOR_MAP_INTERLEAVE_NONE, box_columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    fail("cuTensorMapEncodeTiled refuses [" + std::to_string(z.s) + ", " + std::to_string(matrices) + ", " +
         std::to_string(z.d) + "]: error " + std::to_string(status));
  return map;
}

}  // namespace trivet
