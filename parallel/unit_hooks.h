// UnitHooks: callbacks of a stage that runs, for its passes and its units (parameters that are used together: the
// embedding, a block, the head; ParamList numbers them). Data parallelism gathers weights and reduces gradients in
// them.
#pragma once

namespace trivet {

// A pass of one stage over one micro-batch. A backward pass may recompute units.
enum class Pass { forward, backward };

class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  virtual void begin_pass(Pass) {}
  // After the pass's last callback for a unit, deferred weight halves included.
  virtual void end_pass(Pass) {}
  // After it, the compute stream may read the unit's weights; after before_backward also add to its gradients.
  virtual void before_forward(int) {}
  virtual void before_backward(int) {}
  // The unit's gradients of one micro-batch are complete.
  virtual void after_backward(int) {}
};

}  // namespace trivet
