#include "parallel/tensor/cross_entropy.h"

namespace trivet {

VocabParallelCrossEntropy::VocabParallelCrossEntropy(Context& ctx, Tensor targets, VocabRange range, float scale,
                                                     const CrossEntropyState& state)
    : ctx_(ctx),
      frame_(ctx.scratch),
      targets_(targets),
      range_(range),
      scale_(scale),
      in_chunks_(!state.row_max),
      sums_(frame_.tensor(DType::f32, {2, targets.numel()})),
      row_sum_(sums_.slice(0, 1).view(targets.shape)),
      target_logit_(sums_.slice(1, 1).view(targets.shape)),
      state_(in_chunks_ ? CrossEntropyState{frame_.tensor(DType::f32, targets.shape), row_sum_} : state) {}

void VocabParallelCrossEntropy::forward(Vocab logits, int64_t first, bool with_gradient) {
  Scratch::Frame frame(ctx_.scratch);
  const auto rows = [&](const Tensor& of_all) { return of_all.slice(first, logits.rows()); };
  const bool alone = ctx_.tensor.size() == 1;
  const Tensor row_max = rows(state_.row_max), row_sum = rows(alone ? state_.row_sum : row_sum_);
  const Tensor local_max = alone ? row_max : frame.tensor(DType::f32, row_max.shape);
  ctx_.run(op::CrossEntropyForward{.logits = logits,
                                   .targets = rows(targets_),
                                   .first_column = range_.first_column,
                                   .vocab_size = range_.vocab_size,
                                   .row_max = local_max,
                                   .row_sum = row_sum,
                                   .target_logit = rows(target_logit_),
                                   .gradient = alone && with_gradient ? Tensor(logits) : Tensor{},
                                   .scale = scale_});
  if (alone) return;
  ctx_.run(op::Convert{local_max, row_max});
  ctx_.tensor.reduce(Partial(row_max), Reduce::max, ctx_.compute);
  ctx_.run(op::CrossEntropyRescale{.row_max = local_max, .global_max = row_max, .row_sum = row_sum});
  // With whole logits, one all-reduce sums both; the target logits of chunks are summed after the last one.
  ctx_.tensor.reduce(in_chunks_ ? Partial(row_sum) : sums_, Reduce::sum, ctx_.compute);
  if (!in_chunks_) ctx_.run(op::Convert{row_sum, state_.row_sum});
}

void VocabParallelCrossEntropy::backward(Vocab logits, int64_t first) {
  if (ctx_.tensor.size() == 1) return;  // the forward pass has already computed it
  const auto rows = [&](const Tensor& of_all) { return of_all.slice(first, logits.rows()); };
  ctx_.run(op::CrossEntropyBackward{.logits = logits,
                                    .targets = rows(targets_),
                                    .first_column = range_.first_column,
                                    .vocab_size = range_.vocab_size,
                                    .row_max = rows(state_.row_max),
                                    .row_sum = rows(state_.row_sum),
                                    .scale = scale_});
}

void VocabParallelCrossEntropy::add_loss(Tensor loss) {
  if (in_chunks_ && ctx_.tensor.size() > 1) ctx_.tensor.reduce(Partial(target_logit_), Reduce::sum, ctx_.compute);
  ctx_.run(op::CrossEntropyLoss{.targets = targets_,
                                .row_max = state_.row_max,
                                .row_sum = state_.row_sum,
                                .target_logit = target_logit_,
                                .scale = scale_,
                                .loss = loss});
}

}  // namespace trivet
