#include "parallel/tensor/cross_entropy.h"

namespace trivet {

namespace {

// row_max: over all ranks. row_sum and target_logit: this rank's terms.
void local_statistics(Context& ctx, Vocab logits, Tensor targets, VocabRange range, float scale, Tensor row_max,
                      Tensor row_sum, Tensor target_logit, bool with_gradient) {
  Scratch::Frame frame(ctx.scratch);
  const bool alone = ctx.tensor.size() == 1;
  const Tensor local_max = alone ? row_max : frame.tensor(DType::f32, {targets.numel()});
  ctx.run(op::CrossEntropyForward{.logits = logits,
                                  .targets = targets,
                                  .first_column = range.first_column,
                                  .vocab_size = range.vocab_size,
                                  .row_max = local_max,
                                  .row_sum = row_sum,
                                  .target_logit = target_logit,
                                  .gradient = alone && with_gradient ? Tensor(logits) : Tensor{},
                                  .scale = scale});
  if (alone) return;
  ctx.run(op::Convert{local_max, row_max});
  ctx.tensor.reduce(Partial(row_max), Reduce::max, ctx.compute);
  ctx.run(op::CrossEntropyRescale{.row_max = local_max, .global_max = row_max, .row_sum = row_sum});
}

}  // namespace

void vocab_parallel_cross_entropy_forward(Context& ctx, Vocab logits, Tensor targets, VocabRange range, float scale,
                                          const CrossEntropyState& state, Tensor loss, bool with_gradient) {
  Scratch::Frame frame(ctx.scratch);
  const int64_t n = targets.numel();
  // Adjacent, so that one all-reduce sums both.
  const Partial sums(frame.tensor(DType::f32, {2, n}));
  const bool alone = ctx.tensor.size() == 1;
  const Tensor row_sum = alone ? state.row_sum : sums.slice(0, 1).view({n}), target_logit = sums.slice(1, 1).view({n});
  local_statistics(ctx, logits, targets, range, scale, state.row_max, row_sum, target_logit, with_gradient);
  if (!alone) {
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
  if (ctx.tensor.size() == 1) return;  // the forward pass has already computed it
  ctx.run(op::CrossEntropyBackward{.logits = logits,
                                   .targets = targets,
                                   .first_column = range.first_column,
                                   .vocab_size = range.vocab_size,
                                   .row_max = state.row_max,
                                   .row_sum = state.row_sum,
                                   .scale = scale});
}

ChunkedCrossEntropy::ChunkedCrossEntropy(Context& ctx, Tensor targets, VocabRange range, float scale)
    : ctx_(ctx),
      frame_(ctx.scratch),
      targets_(targets),
      range_(range),
      scale_(scale),
      state_{frame_.tensor(DType::f32, targets.shape), frame_.tensor(DType::f32, targets.shape)},
      target_logit_(frame_.tensor(DType::f32, targets.shape)) {}

void ChunkedCrossEntropy::add(Vocab logits, int64_t first, bool with_gradient) {
  const auto rows = [&](const Tensor& of_all) { return of_all.slice(first, logits.rows()); };
  const CrossEntropyState state{rows(state_.row_max), rows(state_.row_sum)};
  local_statistics(ctx_, logits, rows(targets_), range_, scale_, state.row_max, state.row_sum, rows(target_logit_),
                   with_gradient);
  if (ctx_.tensor.size() > 1) ctx_.tensor.reduce(Partial(state.row_sum), Reduce::sum, ctx_.compute);
  if (with_gradient) vocab_parallel_cross_entropy_backward(ctx_, logits, rows(targets_), range_, scale_, state);
}

void ChunkedCrossEntropy::add_loss(Tensor loss) {
  if (ctx_.tensor.size() > 1) ctx_.tensor.reduce(Partial(target_logit_), Reduce::sum, ctx_.compute);
  ctx_.run(op::CrossEntropyLoss{.targets = targets_,
                                .row_max = state_.row_max,
                                .row_sum = state_.row_sum,
                                .target_logit = target_logit_,
                                .scale = scale_,
                                .loss = loss});
}

}  // namespace trivet
