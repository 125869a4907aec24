#include "parallel/tensor/cross_entropy.h"

namespace trivet {

void vocab_parallel_cross_entropy_forward(Context& ctx, Vocab logits, Tensor targets, VocabRange range, float scale,
                                          const CrossEntropyState& state, Tensor loss, bool with_gradient) {
  Scratch::Frame frame(ctx.scratch);
  const int64_t n = targets.numel();
  // Adjacent, so that one all-reduce sums both.
  const Partial sums(frame.tensor(DType::f32, {2, n}));
  const Tensor row_sum = sums.slice(0, 1).view({n}), target_logit = sums.slice(1, 1).view({n});
  const bool alone = ctx.tensor.size() == 1;
  const Tensor local_max = alone ? state.row_max : frame.tensor(DType::f32, {n});
  ctx.run(op::CrossEntropyForward{.logits = logits,
                                  .targets = targets,
                                  .first_column = range.first_column,
                                  .vocab_size = range.vocab_size,
                                  .row_max = local_max,
                                  .row_sum = alone ? state.row_sum : row_sum,
                                  .target_logit = target_logit,
                                  .gradient = alone && with_gradient ? Tensor(logits) : Tensor{},
                                  .scale = scale});
  if (!alone) {
    ctx.run(op::Convert{local_max, state.row_max});
    ctx.tensor.reduce(Partial(state.row_max), Reduce::max, ctx.compute);
    ctx.run(op::CrossEntropyRescale{.row_max = local_max, .global_max = state.row_max, .row_sum = row_sum});
    ctx.tensor.reduce(sums, Reduce::sum, ctx.compute);
    ctx.run(op::Convert{row_sum, state.row_sum});
  }
  ctx.run(op::CrossEntropyLoss{.targets = targets,
                               .row_max = state.row_max,
                               .row_sum = state.row_sum,
                               .target_logit = target_logit,
                               .scale = scale,
                               .loss = loss});
}

void vocab_parallel_cross_entropy_backward(Context& ctx, Vocab logits, Tensor targets, VocabRange range, float scale,
                                           const CrossEntropyState& state) {
  if (ctx.tensor.size() == 1) return;  // it went with the forward pass
  ctx.run(op::CrossEntropyBackward{.logits = logits,
                                   .targets = targets,
                                   .first_column = range.first_column,
                                   .vocab_size = range.vocab_size,
                                   .row_max = state.row_max,
                                   .row_sum = state.row_sum,
                                   .scale = scale});
}

}  // namespace trivet
