// A rank's communicator, parallel/comm/comm.h, takes Tensors: this makes one of the numbers of an exercise.
// On the CPU's compute stream a call returns when its result is there.
#pragma once

#include <span>

#include "parallel/comm/comm.h"

namespace trivet::exercise {

inline Tensor tensor_of(std::span<float> x) { return {x.data(), DType::f32, {static_cast<int64_t>(x.size())}}; }

}  // namespace trivet::exercise
