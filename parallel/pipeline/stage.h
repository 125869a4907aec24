// Stage: one chunk of a model as the pipeline's executor drives it. It knows nothing of schedules; the executor knows
// nothing of models.
//
// A micro-batch that is under way occupies a slot from its forward to its backward, and a stash from backward_input to
// backward_weight where the two are apart. What crosses a stage boundary is one tensor of a fixed shape, forward
// (activation) and back (its gradient).
#pragma once

#include "kernels/base/tensor.h"

namespace trivet {

class Stage {
 public:
  virtual ~Stage() = default;

  // Where the slot's input activation is; the model's first stage makes it itself. The executor may put another tensor
  // of the same shape in its place (a receive buffer), so that what arrives need not be copied.
  virtual Tensor input(int slot) const = 0;
  virtual void set_input(int slot, Tensor input) = 0;
  virtual void copy_input(int slot, Tensor input) = 0;  // where the tensor belongs to another stage of this rank
  virtual Tensor output(int slot) const = 0;            // valid after forward, until the slot's next forward

  virtual void forward(int microbatch, int slot) = 0;
  // grad: the gradient of the output (undefined on the model's last stage), becomes that of the input.
  virtual void backward(int microbatch, int slot, Tensor grad) = 0;
  // The two halves of it.
  virtual void backward_input(int microbatch, int slot, int stash, Tensor grad) = 0;
  virtual void backward_weight(int stash) = 0;

  // Fills what the slot holds with NaN, as a test that nothing is read after its time.
  virtual void poison(int slot) = 0;
};

}  // namespace trivet
