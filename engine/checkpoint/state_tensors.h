// StateTensor: a piece of what has to survive a run: a weight, or one of Adam's moments, as this rank owns it. All in
// fp32: where the model computes in bf16, the main weights are the state, and the model's are made from them.
//
// Names are Megatron's: the parameter's own for the weight, optimizer.exp_avg.NAME and optimizer.exp_avg_sq.NAME.
#pragma once

#include <string>
#include <vector>

#include "engine/checkpoint/slice.h"
#include "parallel/data/adam.h"
#include "parallel/data/flat_buffer.h"

namespace trivet {

struct StateTensor {
  std::string name;
  Slice slice;
  Tensor data;  // [slice.count] fp32
};

inline constexpr const char* kFirstMoment = "optimizer.exp_avg.";
inline constexpr const char* kSecondMoment = "optimizer.exp_avg_sq.";

// All that this rank owns, in the order of the flat buffer: what it loads.
std::vector<StateTensor> state_tensors(const FlatBuffer& flat, const Adam& adam);

// What this rank saves of it. Over all ranks every element of the model once: of a weight's copies the first
// (Param::first_copy), and what data-parallel ranks all own they divide.
std::vector<StateTensor> saved_tensors(const FlatBuffer& flat, const Adam& adam);

// The bytes of saved_tensors before there is any memory behind them.
int64_t saved_bytes(const FlatBuffer& flat);

}  // namespace trivet
