// WeightGradQueue: runs the weight-gradient halves of a backward pass, at once or deferred.
//
// A layer's backward pushes its backward_weight here, which usually runs it. A zero-bubble schedule defers it: between
// defer(stash) and run_now() pushes are queued under the stash with their activations and gradients; run(stash) runs
// them in order, when the schedule comes to W.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace trivet {

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

}  // namespace trivet
