// Stage: one chunk of a model, as the pipeline executor sees it. It knows nothing about schedules; the executor knows
// nothing about models.
//
// A micro-batch in flight occupies a slot from its forward to its backward, and a stash between the halves of a
// split backward pass. One tensor of a fixed shape, or its first rows, crosses a stage boundary: the activation forward,
// its gradient back.
#pragma once

#include "kernels/base/tensor.h"

namespace trivet {

class Stage {
 public:
  virtual ~Stage() = default;

  // The slot's input activation, which the model's first stage computes itself. The executor may swap in another
  // tensor of the same shape (a receive buffer), which saves a copy.
  virtual Tensor input(int slot) const = 0;
  virtual void set_input(int slot, Tensor input) = 0;
  virtual void copy_input(int slot, Tensor input) = 0;  // from a tensor of another stage on this rank
  virtual Tensor output(int slot) const = 0;            // valid after forward, until the slot's next forward

  virtual void forward(int microbatch, int slot) = 0;
  // grad: holds the gradient of the output (undefined on the model's last stage); becomes that of the input. stash: -1
  // for a whole backward pass; otherwise only its input half, whose weight half follows.
  virtual void backward(int microbatch, int slot, int stash, Tensor grad) = 0;
  virtual void backward_weight(int stash) = 0;

  // Fills the slot's activations with NaN, to test that nothing reads them later.
  virtual void poison(int slot) = 0;
};

}  // namespace trivet
