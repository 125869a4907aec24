#include "engine/train/logits.h"

namespace trivet {

std::vector<float> read_logits(const LogitsOf& model, const GptShape& shape, int64_t position) {
  const auto& [mesh, schedule, executor, stages, scratch, ops, device, compute] = model;
  const int last_stage = schedule.stages() - 1, last_rank = schedule.rank_of(last_stage);
  const int64_t columns = shape.padded_vocab / shape.t;
  Scratch::Frame frame(scratch);
  const Tensor whole = frame.tensor(DType::f32, {shape.t, columns});
  if (mesh.at.pp == last_rank) {
    const GptStage& stage = stages[static_cast<size_t>(schedule.chunk_of(last_stage))];
    const Tensor row = stage.logits(executor.slot_of(last_stage, 0))
                           .view({shape.tokens(), columns})
                           .slice(position * shape.micro_batch, 1);
    const Tensor mine = whole.slice(mesh.at.tp, 1);
    ops.run(op::Convert{row, mine}, compute);
    if (shape.t > 1) mesh.tensor->all_gather(mine, whole, compute);
  }
  if (mesh.shape.p > 1) mesh.pipeline->broadcast(whole, last_rank, compute);
  std::vector<float> logits(static_cast<size_t>(whole.numel()));
  device.copy_to_host(whole, logits.data(), compute);
  compute.synchronize();
  logits.resize(static_cast<size_t>(shape.vocab));  // the rest is padding
  return logits;
}

}  // namespace trivet
