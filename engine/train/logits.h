// The logits of one position, from where the model's last stage has left them to every rank of the model.
#pragma once

#include <vector>

#include "engine/model/gpt_stage.h"
#include "kernels/ops.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/executor.h"

namespace trivet {

struct LogitsOf {
  const Mesh& mesh;
  const Schedule& schedule;
  const Executor& executor;
  const std::deque<GptStage>& stages;  // [chunk] of this rank
  Scratch& scratch;
  Ops& ops;
  Device& device;
  Stream& compute;
};

// Of position `position` of batch entry 0 of micro-batch 0, after executor.run_forward_only(): [vocab] on every rank.
// Collective over the model's ranks.
std::vector<float> read_logits(const LogitsOf& model, const GptShape& shape, int64_t position);

}  // namespace trivet
