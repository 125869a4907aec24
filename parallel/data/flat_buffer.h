// FlatBuffer: the memory of all parameters of a rank, laid out once. One buffer of weights in the model's dtype and one
// of fp32 gradients have the same layout, so that a range of elements means the same weights in both, in the
// optimizer's moments, and in the collectives: nothing is packed or copied.
//
// Parameters stand in backward order (the reverse of their declaration), each from a multiple of 64 elements on, so
// that gradients become final from the front of the buffer to its end, bucket by bucket. The gaps are zero.
#pragma once

#include <vector>

#include "kernels/base/arena.h"
#include "parallel/param.h"

namespace trivet {

struct FlatSegment {
  Param* param = nullptr;
  int64_t offset = 0;  // in elements
};

struct FlatBucket {
  int64_t begin = 0, end = 0;  // in elements
};

struct FlatBuffer {
  static constexpr int64_t kAlignment = 64;  // elements

  // Lays the parameters out, takes the memory, contents undefined, and points every parameter's weight (of `dtype`) and
  // grad into it. A bucket closes with the parameter that brings it to bucket_size elements.
  FlatBuffer(ParamList& params, int64_t bucket_size, DType dtype, Arena& weight_arena, Arena& gradient_arena);

  std::vector<FlatSegment> segments;  // backward order
  std::vector<FlatBucket> buckets;    // cover [0, numel)
  int64_t numel = 0;                  // a multiple of 64
  Tensor weights;                     // [numel] model dtype
  Tensor grads;                       // [numel] fp32
};

// The part of a flat tensor that belongs to a segment, in the parameter's shape.
Tensor view_of(Tensor flat, const FlatSegment& segment);

}  // namespace trivet
