// WeightGradQueue: the weight-gradient halves of a backward pass, on their way to being run.
//
// A layer's backward pushes its backward_weight here. As a rule the work runs inside push. A zero-bubble schedule
// defers it: between defer(stash) and run_now() pushes are kept under the number of the stash that holds what they
// refer to (activations, gradients), and run(stash) runs them, in the order of the pushes, when the schedule's W comes.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "kernels/base/check.h"

namespace trivet {

class WeightGradQueue {
 public:
  void defer(int stash) {
    check(stash >= 0, "weight gradients are deferred to a stash");
    if (kept_.size() <= static_cast<size_t>(stash)) kept_.resize(static_cast<size_t>(stash) + 1);
    check(kept_[static_cast<size_t>(stash)].empty(),
          "the stash still holds the weight gradients of another micro-batch");
    open_ = stash;
  }
  void run_now() { open_ = -1; }
  bool deferring() const { return open_ >= 0; }

  template <class F>
  void push(F&& backward_weight) {
    if (open_ >= 0) kept_[static_cast<size_t>(open_)].emplace_back(std::forward<F>(backward_weight));
    else backward_weight();
  }
  void run(int stash) {
    std::vector<std::function<void()>>& work = kept_.at(static_cast<size_t>(stash));
    for (const auto& backward_weight : work) backward_weight();
    work.clear();
  }

 private:
  int open_ = -1;
  std::vector<std::vector<std::function<void()>>> kept_;  // [stash]
};

}  // namespace trivet
