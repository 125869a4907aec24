// WeightGradQueue: the weight-gradient halves of a backward pass, on their way to being run.
//
// A layer's backward pushes its backward_weight here. A schedule that keeps the halves together (1F1B and the like)
// leaves the queue immediate, and the work runs inside push. A zero-bubble schedule defers: it closes the batch of a
// micro-batch after its backward_input (end_batch) and runs the oldest batch when its W comes (run_batch), first in,
// first out. What the closures refer to (activations, gradients) must live until then.
#pragma once

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/base/check.h"

namespace trivet {

class WeightGradQueue {
 public:
  void set_deferred(bool deferred) {
    check(pending() == 0 && open_.empty(), "weight gradients are pending while the queue changes its mode");
    deferred_ = deferred;
  }
  bool deferred() const { return deferred_; }
  template <class F>
  void push(F&& backward_weight) {
    if (deferred_) open_.emplace_back(std::forward<F>(backward_weight));
    else backward_weight();
  }
  void end_batch() {
    if (deferred_) batches_.push_back(std::exchange(open_, {}));
  }
  void run_batch() {
    check(!batches_.empty(), "no batch of weight gradients is pending");
    for (const auto& work : batches_.front()) work();
    batches_.pop_front();
  }
  size_t pending() const { return batches_.size(); }

 private:
  bool deferred_ = false;
  std::vector<std::function<void()>> open_;
  std::deque<std::vector<std::function<void()>>> batches_;
};

}  // namespace trivet
