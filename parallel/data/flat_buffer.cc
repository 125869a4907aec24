#include "parallel/data/flat_buffer.h"

namespace trivet {

FlatBuffer::FlatBuffer(ParamList& params, int64_t bucket_size, DType dtype, Arena& weight_arena,
                       Arena& gradient_arena) {
  int64_t bucket_begin = 0;
  for (auto param = params.all().rbegin(); param != params.all().rend(); ++param) {
    segments.push_back({&*param, numel});
    numel += (param->shape.numel() + kAlignment - 1) / kAlignment * kAlignment;
    if (numel - bucket_begin >= bucket_size) {
      buckets.push_back({bucket_begin, numel});
      bucket_begin = numel;
    }
  }
  if (bucket_begin < numel) buckets.push_back({bucket_begin, numel});

  weights = weight_arena.allocate(dtype, {numel});
  grads = gradient_arena.allocate(DType::f32, {numel});
  for (const FlatSegment& segment : segments) {
    segment.param->weight = view_of(weights, segment);
    segment.param->grad = view_of(grads, segment);
  }
}

Tensor view_of(Tensor flat, const FlatSegment& segment) {
  return flat.slice(segment.offset, segment.param->shape.numel()).view(segment.param->shape);
}

}  // namespace trivet
