// UnitHooks: what a stage tells while it runs, of its passes and of the units it is made of (parameters that are used
// together: the embedding, a block, the head; ParamList numbers them). Data parallelism answers: it waits for weights
// that are still being gathered, brings them in and drops them, and sends gradients on their way as soon as they are
// complete.
#pragma once

namespace trivet {

// Of one stage over one micro-batch. A backward pass may run units forward again (recompute).
enum class Pass { forward, backward };

class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  virtual void begin_pass(Pass) {}
  // All that is told of the units of the pass has been told, weight halves that were put off included.
  virtual void end_pass(Pass) {}
  // The compute stream may read the unit's weights after it.
  virtual void before_forward(int) {}
  // Likewise, and add to its gradients.
  virtual void before_backward(int) {}
  // The unit's gradients of one micro-batch have all been added.
  virtual void after_backward(int) {}
};

}  // namespace trivet
