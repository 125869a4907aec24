// Context: everything that the forward and backward pass of a layer needs from its rank, passed by reference: there are
// no singletons, globals or thread-locals.
#pragma once

#include "kernels/base/arena.h"
#include "kernels/ops.h"
#include "parallel/tensor_group.h"
#include "parallel/unit_hooks.h"
#include "parallel/weight_grad_queue.h"

namespace trivet {

class TensorCommStream;  // parallel/tensor/overlap.h

struct Context {
  Ops& ops;
  Stream& compute;
  TensorGroup tensor;
  WeightGradQueue& weight_grads;
  UnitHooks& units;
  Scratch& scratch;
  TensorCommStream* tensor_comm_stream = nullptr;  // null: tensor-parallel communication is not overlapped

  void run(const AnyOp& op) const { ops.run(op, compute); }
  // Tells `units`, and labels compute's spans with the unit from now on.
  void before_forward(int unit) const { label(unit), units.before_forward(unit); }
  void before_backward(int unit) const { label(unit), units.before_backward(unit); }

 private:
  void label(int unit) const { compute.label().first_unit = compute.label().last_unit = unit; }
};

}  // namespace trivet
