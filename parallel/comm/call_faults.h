// For tests of what happens when a rank does not do as the others: faults of collectives, which a flight recorder
// (flight_comm.h) puts in.
#pragma once

#include <algorithm>

#include "kernels/base/tensor.h"

namespace trivet {

enum class CallFault { none, skip, extra, wrong_size, wrong_type };

// Asked before each collective of a group of several ranks, on the thread that calls it.
class CallFaults {
 public:
  virtual ~CallFaults() = default;
  virtual CallFault next_call() = 0;
};

// The tensor that the fault makes of one: shorter by n elements, or of another type that is no larger.
inline Tensor changed(const Tensor& tensor, CallFault fault, int64_t n) {
  if (fault == CallFault::wrong_size) return {tensor.data, tensor.dtype, {std::max(tensor.numel() - n, int64_t{0})}};
  if (fault == CallFault::wrong_type)
    return {tensor.data, tensor.dtype == DType::bf16 ? DType::u8 : DType::bf16, {tensor.numel()}};
  return tensor;
}
// A shard that is changed as its whole is lies where it would lie in it.
inline Tensor changed_shard(const Tensor& shard, const Tensor& full, CallFault fault, int rank) {
  Tensor part = changed(shard, fault, 1);
  if (fault != CallFault::none) part.data = static_cast<std::byte*>(full.data) + rank * part.bytes();
  return part;
}

}  // namespace trivet
