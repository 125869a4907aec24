#include "kernels/cuda/cuda_tile_map.h"

#include "kernels/base/cuda_device.h"

namespace trivet {
namespace {

using Encode = CUresult(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                        const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                        CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's; programs are not linked with it.
Encode* find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
             "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess) fail("the CUDA driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<Encode*>(function);
}

}  // namespace

CUtensorMap make_tile_map(const void* data, int64_t rows, int64_t matrices, int64_t columns, int box_rows,
                          int box_columns) {
  static Encode* const encode = find_encode();
  const cuuint64_t size[3] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(matrices),
                              static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[2] = {size[0] * 2, size[0] * size[1] * 2};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(box_columns), 1, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t each[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), size, stride, box, each,
             CU_TENSOR_MAP_INTERLEAVE_NONE, box_columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    fail("cuTensorMapEncodeTiled refuses [" + std::to_string(rows) + ", " + std::to_string(matrices) + ", " +
         std::to_string(columns) + "]: error " + std::to_string(status));
  return map;
}

}  // namespace trivet
