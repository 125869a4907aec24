#include "engine/model/gpt_chunk.h"

namespace trivet {

MicroBatch GptChunk::micro_batch(int microbatch, int slot) const {
  return {.first_sample = stage_.first_sample(slot),
          .training = step_.training,
          .loss_scale = step_.loss_scale,
          .defer_head_weight = microbatch >= static_cast<int>(step_.batches.size()) - step_.defer_heads,
          .positions = step_.positions,
          .position_ids = step_.positions ? Tensor{} : stage_.position_ids(slot),
          .starts = step_.positions ? Tensor{} : stage_.starts(slot)};
}

void GptChunk::copy_input(int slot, Tensor input) {
  ctx_.run(op::Convert{input, stage_.input(slot).slice(0, input.shape[0])});
}

void GptChunk::forward(int microbatch, int slot) {
  step_.begin(StepPhase::forward);
  const HostBatch& batch = step_.batches[static_cast<size_t>(microbatch)];
  const int64_t positions = step_.positions ? step_.positions->count : stage_.shape().rank_seq();
  const auto copy = [&](std::span<const int32_t> ids, const Tensor& to) {
    if (to) device_.copy_to_device(ids.data(), to.slice(0, positions), ctx_.compute);
  };
  copy(batch.tokens, stage_.tokens(slot));
  copy(batch.labels, stage_.labels(slot));
  copy(batch.position_ids, stage_.position_ids(slot));
  copy(batch.starts, stage_.starts(slot));
  if (step_.training && stage_.shape().drops())
    device_.copy_to_device(&batch.first_sample, stage_.first_sample(slot), ctx_.compute);
  stage_.forward(ctx_, slot, micro_batch(microbatch, slot), loss_);
  step_.end(StepPhase::forward);
}

void GptChunk::backward(int microbatch, int slot, int stash, Tensor grad) {
  step_.begin(StepPhase::backward);
  if (stash >= 0) ctx_.weight_grads.defer(stash);
  stage_.backward(ctx_, slot, stash, micro_batch(microbatch, slot), Residual(grad), loss_);
  ctx_.weight_grads.run_now();
  step_.end(StepPhase::backward);
}

}  // namespace trivet
