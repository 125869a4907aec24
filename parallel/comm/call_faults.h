// Fault injection into the collectives of a Communicator, for tests of ranks that do not call as the others do.
#pragma once

#include <algorithm>

#include "parallel/comm/call.h"

namespace trivet {

enum class CallFault { none, skip, extra, wrong_size, wrong_type };

// next_call() is called before each collective of a group of several ranks, on the caller's thread.
class CallFaults {
 public:
  virtual ~CallFaults() = default;
  virtual CallFault next_call() = 0;
};

// Applies the fault: the tensors become shorter, or of another type that is no larger. A shard stays in its place
// within the full tensor.
inline Call changed(Call call, CallFault fault, int rank, int size) {
  if (fault != CallFault::wrong_size && fault != CallFault::wrong_type) return call;
  const auto change = [&](Tensor& x, int64_t fewer) {
    if (fault == CallFault::wrong_size) x = {x.data, x.dtype, {std::max(x.numel() - fewer, int64_t{0})}};
    else x = {x.data, x.dtype == DType::bf16 ? DType::u8 : DType::bf16, {x.numel()}};
  };
  const bool gathers = call.kind == CommCall::all_gather, scatters = call.kind == CommCall::reduce_scatter;
  const bool parts = gathers || scatters || call.kind == CommCall::all_to_all;
  change(call.in, parts && !gathers ? size : 1);
  change(call.out, parts && !scatters ? size : 1);
  if (gathers || scatters) {
    const Tensor& full = gathers ? call.out : call.in;
    Tensor& shard = gathers ? call.in : call.out;
    shard.data = static_cast<std::byte*>(full.data) + rank * shard.bytes();
  }
  return call;
}

}  // namespace trivet
