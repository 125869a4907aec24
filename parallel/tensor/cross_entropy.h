// Cross-entropy over logits whose vocabulary columns are partitioned over the tensor-parallel group. The full logits
// are never gathered: three values per token are reduced (Shoeybi et al. 2019, section 3). Padding is excluded from
// the softmax.
#pragma once

#include "parallel/context.h"

namespace trivet {

// Saved by the forward pass for the backward pass. [n] fp32 each, n = s * b tokens.
struct CrossEntropyState {
  Tensor row_max;  // over the whole vocabulary
  Tensor row_sum;  // of exp(logit - row_max), over the whole vocabulary
};

struct VocabRange {
  int64_t first_column = 0;  // vocabulary entry of this rank's column 0
  int64_t vocab_size = 0;    // entries from here on are padding
};

// logits: [n, v/t] T; targets: [n] int32, negative if a token has no label and does not count. loss[0] += scale * sum
// over tokens of the cross-entropy, the same on every tensor rank. with_gradient: the backward pass below will follow;
// with a single tensor rank its work is done here, while the logits are at hand.
void vocab_parallel_cross_entropy_forward(Context& ctx, Vocab logits, Tensor targets, VocabRange range, float scale,
                                          const CrossEntropyState& state, Tensor loss, bool with_gradient);
// In place: logits become the gradient of scale * (sum of the cross-entropies).
void vocab_parallel_cross_entropy_backward(Context& ctx, Vocab logits, Tensor targets, VocabRange range, float scale,
                                           const CrossEntropyState& state);

// Both passes, one chunk of rows at a time, so that only one chunk's logits exist. Rows are independent, and the loss
// is summed over all of them at the end: it is bitwise that of the functions above.
class ChunkedCrossEntropy {
 public:
  // targets: [n], for all rows. Holds 12 n bytes of the context's scratch.
  ChunkedCrossEntropy(Context& ctx, Tensor targets, VocabRange range, float scale);

  // logits: for the rows from `first` on; with_gradient: overwritten with their gradient.
  void add(Vocab logits, int64_t first, bool with_gradient);
  // After all rows. loss[0] += scale * sum over tokens of the cross-entropy.
  void add_loss(Tensor loss);

 private:
  Context& ctx_;
  Scratch::Frame frame_;
  const Tensor targets_;
  const VocabRange range_;
  const float scale_;
  const CrossEntropyState state_;
  const Tensor target_logit_;  // [n] fp32, 0 if it is on another rank
};

}  // namespace trivet
