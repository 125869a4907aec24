// UnitHooks: what a stage tells of the units it is made of (parameters that are used together: the embedding, a block,
// the head; ParamList numbers them), while it runs. Data parallelism answers: it waits for weights that are still being
// gathered, brings them in and drops them, and sends gradients on their way as soon as they are complete.
#pragma once

namespace trivet {

class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  // The compute stream may read the unit's weights after it.
  virtual void before_forward(int) {}
  // Likewise, and add to its gradients.
  virtual void before_backward(int) {}
  // The unit's gradients of one micro-batch have all been added.
  virtual void after_backward(int) {}
};

}  // namespace trivet
