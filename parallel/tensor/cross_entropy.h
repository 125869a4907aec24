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

// One pass over a micro-batch's rows, all at once or in chunks, so that only one chunk's logits exist. Rows are
// independent, and the loss is summed over all of them at the end: it is bitwise the same either way.
class VocabParallelCrossEntropy {
 public:
  // targets: [n] int32, for all rows, negative if a token has no label and does not count. state: whole logits' for a
  // later backward pass; null: rows come in chunks. Holds 8 n bytes of the context's scratch, in chunks 12 n.
  VocabParallelCrossEntropy(Context& ctx, Tensor targets, VocabRange range, float scale,
                            const CrossEntropyState& state = {});

  // logits: [rows, v/t] T, for the rows from `first` on. with_gradient: backward() will follow; with a single tensor
  // rank its work is done here, while the logits are at hand.
  void forward(Vocab logits, int64_t first, bool with_gradient);
  // In place: logits become the gradient of scale * (sum of the cross-entropies).
  void backward(Vocab logits, int64_t first);
  // After the forward of all rows. loss[0] += scale * sum over tokens of the cross-entropy, the same on every tensor
  // rank.
  void add_loss(Tensor loss);

 private:
  Context& ctx_;
  Scratch::Frame frame_;
  const Tensor targets_;
  const VocabRange range_;
  const float scale_;
  const bool in_chunks_;
  const Partial sums_;                   // [2, n]: of this rank's terms
  const Tensor row_sum_, target_logit_;  // its rows; the logit is 0 if it is on another rank
  const CrossEntropyState state_;
};

}  // namespace trivet
