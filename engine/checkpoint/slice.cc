#include "engine/checkpoint/slice.h"

namespace trivet {

Slice slice_of(const Param& param, int64_t first, int64_t count) {
  const ParamSpec& spec = param.spec;
  const Shape& shape = param.shape;
  if (shape.rank != 1 && shape.rank != 2) fail(spec.name + ": parameters are vectors or matrices");
  Slice slice{.global = spec.global_shape, .cols = shape[-1], .first = first, .count = count};
  if (shape.rank == 2) slice.rows = shape[0];
  if (param.partition_dim == 0 && shape.rank == 2) slice.row = param.partition_offset;
  else if (param.partition_dim >= 0) slice.col = param.partition_offset;
  if (spec.padding_from >= 0) {
    check(shape.rank == 2 && param.partition_dim != 1, "only whole rows are padding");
    slice.global.dims[0] = spec.padding_from;
    slice.rows = std::clamp<int64_t>(spec.padding_from - slice.row, 0, slice.rows);
    slice.count = std::clamp<int64_t>(slice.rows * slice.cols - first, 0, count);
  }
  return slice;
}

}  // namespace trivet
