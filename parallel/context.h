// Context: everything that a layer's forward and backward passes need from their rank, passed by reference: it uses no
// singletons, globals or thread-locals. Its parts are defined here too: the tensor-parallel group as layers see it,
// the callbacks for units, and the queue of weight gradients.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/ops.h"
#include "parallel/comm/comm.h"
#include "parallel/placed.h"

namespace trivet {

// The tensor-parallel group: layers gather partitioned tensors and reduce partial ones, and can do nothing else with
// it.
class TensorGroup {
 public:
  // sequence_parallel: residuals hold only this rank's positions.
  TensorGroup(Communicator& group, bool sequence_parallel) : group_(group), sequence_parallel_(sequence_parallel) {}

  int size() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  bool sequence_parallel() const { return sequence_parallel_; }

  // whole = the positions of all ranks. REQUIRES: sequence_parallel().
  void gather(Residual part, Whole whole, Stream& stream) const { group_.all_gather(part, whole, stream); }
  // sum = the sum of the ranks' terms. REQUIRES: without sequence_parallel() both are the same memory.
  void reduce(Partial term, Residual sum, Stream& stream) const {
    if (sequence_parallel_) group_.reduce_scatter(term, sum, Reduce::sum, stream);
    else if (group_.size() > 1) group_.all_reduce(term, Reduce::sum, stream);
  }
  // In place: the elementwise sum or maximum over the ranks, on every rank.
  Whole reduce(Partial numbers, Reduce op, Stream& stream) const {
    group_.all_reduce(numbers, op, stream);
    return Whole(Tensor(numbers));
  }

 private:
  Communicator& group_;
  bool sequence_parallel_;
};

// A pass of one stage over one micro-batch. A backward pass may recompute units.
enum class Pass { forward, backward };

// Callbacks from a running stage for its passes and its units (parameters that are used together: the embedding, a
// block, the head; ParamList numbers them). Data parallelism uses them to gather weights and reduce gradients.
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  virtual void begin_pass(Pass) {}
  // Called after the pass's last callback for a unit, deferred weight halves included.
  virtual void end_pass(Pass) {}
  // After these calls, the compute stream may read the unit's weights and, after before_backward, add to its gradients.
  virtual void before_forward(int) {}
  virtual void before_backward(int) {}
  // The unit's gradients of one micro-batch are complete.
  virtual void after_backward(int) {}
};

// Runs the weight-gradient halves of backward passes, immediately or later.
//
// A layer's backward pushes its backward_weight here, which usually runs immediately. A zero-bubble schedule defers it:
// pushes between defer(stash) and run_now() are queued under the stash, with their activations and gradients;
// run(stash) runs them in order when the schedule reaches W.
class WeightGradQueue {
 public:
  void defer(int stash) {
    check(stash >= 0, "weight gradients are deferred to a stash");
    if (deferred_.size() <= static_cast<size_t>(stash)) deferred_.resize(static_cast<size_t>(stash) + 1);
    check(deferred_[static_cast<size_t>(stash)].empty(),
          "the stash still holds the weight gradients of another micro-batch");
    open_ = stash;
  }
  void run_now() { open_ = -1; }
  bool deferring() const { return open_ >= 0; }

  template <class F>
  void push(F&& backward_weight) {
    if (open_ >= 0) deferred_[static_cast<size_t>(open_)].emplace_back(std::forward<F>(backward_weight));
    else backward_weight();
  }
  void run(int stash) {
    std::vector<std::function<void()>>& work = deferred_.at(static_cast<size_t>(stash));
    for (const auto& backward_weight : work) backward_weight();
    work.clear();
  }

 private:
  int open_ = -1;
  std::vector<std::vector<std::function<void()>>> deferred_;  // [stash]
};

class TensorCommStream;  // parallel/tensor/overlap.h
class ContextGroup;      // parallel/context/attention.h

struct Context {
  Ops& ops;
  Stream& compute;
  TensorGroup tensor;
  WeightGradQueue& weight_grads;
  UnitHooks& units;
  Scratch& scratch;
  TensorCommStream* tensor_comm_stream = nullptr;  // null: tensor-parallel communication is not overlapped
  ContextGroup* context = nullptr;                 // null: the rank holds all positions
  Communicator* sequence = nullptr;                // the ranks that share the sequence; null: as above
  bool quantises = true;  // false in generation: no result may depend on how many tokens are processed at a time

  void run(const AnyOp& op) const { ops.run(op, compute); }
  // Notifies `units`, and labels compute's spans with the unit from now on.
  void before_forward(int unit) const { label(unit), units.before_forward(unit); }
  void before_backward(int unit) const { label(unit), units.before_backward(unit); }

 private:
  void label(int unit) const { compute.label().first_unit = compute.label().last_unit = unit; }
};

}  // namespace trivet
