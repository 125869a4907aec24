// DataParallel: GradSync and ParamGather as one object for the stages.
#pragma once

#include "parallel/context.h"
#include "parallel/data/grad_sync.h"
#include "parallel/data/param_gather.h"

namespace trivet {

struct DataParallel : UnitHooks {
  // Collective over on.group, the data-parallel ranks.
  DataParallel(FlatBuffer& flat, Ops& ops, const CommStreamSite& on, const GradSync::Options& reduce,
               const ParamGather::Options& gather)
      : grads(flat, ops, on, reduce), weights(flat, ops, on, gather) {}

  void begin_pass(Pass pass) override {
    if (pass == Pass::forward) weights.begin_forward_pass();
  }
  void end_pass(Pass pass) override {
    if (pass == Pass::backward) grads.end_backward_pass();
  }
  void before_forward(int unit) override { weights.before_forward(unit); }
  void before_backward(int unit) override {
    weights.before_backward(unit);
    grads.before_backward(unit);
  }
  void after_backward(int unit) override { grads.after_backward(unit); }

  GradSync grads;
  ParamGather weights;
};

}  // namespace trivet
