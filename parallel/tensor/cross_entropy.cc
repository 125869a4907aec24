#include "parallel/tensor/cross_entropy.h"

namespace trivet {

void vocab_parallel_cross_entropy_forward(Context& ctx, Tensor logits, Tensor targets, VocabRange range, float scale,
                                          const CrossEntropyState& state, Tensor loss) {
  Scratch::Frame frame(ctx.scratch);
  const int64_t n = targets.numel();
  // Side by side, so that one all-reduce carries both.
  const Tensor sums = frame.tensor(DType::f32, {2, n});
  const Tensor row_sum = sums.slice(0, 1).view({n}), target_logit = sums.slice(1, 1).view({n});
  if (ctx.tensor.size() == 1) {
    ctx.ops.cross_entropy_forward(logits, targets, range.first_column, range.vocab_size, state.row_max, state.row_sum,
                                  target_logit, ctx.compute);
  } else {
    const Tensor local_max = frame.tensor(DType::f32, {n});
    ctx.ops.cross_entropy_forward(logits, targets, range.first_column, range.vocab_size, local_max, row_sum,
                                  target_logit, ctx.compute);
    ctx.ops.convert(local_max, state.row_max, ctx.compute);
    ctx.tensor.all_reduce(state.row_max, Reduce::max, ctx.compute);
    ctx.ops.cross_entropy_rescale(local_max, state.row_max, row_sum, ctx.compute);
    ctx.tensor.all_reduce(sums, Reduce::sum, ctx.compute);
    ctx.ops.convert(row_sum, state.row_sum, ctx.compute);
  }
  ctx.ops.cross_entropy_loss(state.row_max, state.row_sum, target_logit, scale, loss, ctx.compute);
}

void vocab_parallel_cross_entropy_backward(Context& ctx, Tensor logits, Tensor targets, VocabRange range, float scale,
                                           const CrossEntropyState& state) {
  ctx.ops.cross_entropy_backward(logits, targets, range.first_column, range.vocab_size, state.row_max, state.row_sum,
                                 scale, ctx.compute);
}

}  // namespace trivet
