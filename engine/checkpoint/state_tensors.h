// StateTensor: this rank's slice of a checkpointed weight or of its optimizer state, in fp32. In a bf16 run the main
// weights are checkpointed, and the model's weights are derived from them.
//
// Names are Megatron's: NAME for the weight, optimizer.exp_avg.NAME and optimizer.exp_avg_sq.NAME for its moments.
#pragma once

#include <string>
#include <vector>

#include "engine/checkpoint/slice.h"
#include "parallel/data/flat_buffer.h"
#include "parallel/data/optimizer.h"

namespace trivet {

struct StateTensor {
  std::string name;
  Slice slice;
  Tensor data;  // [slice.count] fp32
};

// The elements [first, first + count) of this rank's shard of the parameter, without padding, so slice.count may be
// smaller than `count`, even 0.
Slice slice_of(const Param& param, int64_t first, int64_t count);

inline constexpr const char* kFirstMoment = "optimizer.exp_avg.";
inline constexpr const char* kSecondMoment = "optimizer.exp_avg_sq.";

// The state that this rank owns and therefore loads, in flat-buffer order.
std::vector<StateTensor> state_tensors(const FlatBuffer& flat, const Optimizer& optimizer);

// The part that this rank saves: together, the ranks save each model element exactly once. Only the first copy of a
// weight is saved (Param::first_copy); data-parallel ranks that own the same elements divide them.
std::vector<StateTensor> saved_tensors(const FlatBuffer& flat, const Optimizer& optimizer);

// The size of saved_tensors(); also available on a planning device.
int64_t saved_bytes(const FlatBuffer& flat, const Optimizer& optimizer);

}  // namespace trivet
