// DataParallel: what data parallelism does while a stage runs, for the layers below it one object.
#pragma once

#include "parallel/data/grad_sync.h"
#include "parallel/data/param_gather.h"

namespace trivet {

class DataParallel : public UnitHooks {
 public:
  DataParallel(GradSync& grads, ParamGather& weights) : grads_(grads), weights_(weights) {}
  void before_forward(int unit) override { weights_.before_forward(unit); }
  void before_backward(int unit) override {
    weights_.before_backward(unit);
    grads_.before_backward(unit);
  }
  void after_backward(int unit) override { grads_.after_backward(unit); }

 private:
  GradSync& grads_;
  ParamGather& weights_;
};

}  // namespace trivet
