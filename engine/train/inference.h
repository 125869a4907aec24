// InferenceModel: one rank of a model that only runs forwards: weights in the run's dtype, the activations of one block
// at a time, no gradients and no optimizer. Its weights come from a checkpoint of any layout.
//
// Every rank of the world has one and makes the same calls.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/checkpoint/open_checkpoint.h"
#include "engine/config/validate.h"
#include "engine/model/gpt_chunk.h"
#include "engine/model/step_input.h"
#include "engine/train/backend.h"
#include "kernels/base/trace.h"
#include "parallel/comm/world.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/executor.h"
#include "parallel/unit_hooks.h"

namespace trivet {

// The config of a run that samples from `checkpoint`: its model and precision, on `tensor` x `pipeline` ranks, one
// sequence at a time. `sets`: as of load_config(). Throws ConfigError, DataError.
LoadedConfig inference_config(const OpenCheckpoint& checkpoint, int tensor, int pipeline,
                              std::span<const std::string> sets);

class InferenceModel {
 public:
  // Collective over `world`. `config`: resolved, as inference_config() makes it. positions: of the longest context that
  // will be asked for, at most the model's seq_length; the work of a forward grows with it. Reads the weights.
  InferenceModel(const Config& config, const Layout& layout, Communicator& world, const OpenCheckpoint& checkpoint,
                 int64_t positions);

  // What the model expects after `context`, 1 to `positions` tokens: [vocab_size], the same on every rank.
  std::vector<float> next_token_logits(std::span<const int32_t> context);

  const GptShape& shape() const { return shape_; }
  const Device& device() const { return *device_; }
  int64_t bytes() const { return weights_.bytes() + activations_.bytes() + scratch_arena_.bytes(); }

 private:
  void load(const OpenCheckpoint& checkpoint, int64_t seq_length);

  Backend backend_;
  Device* device_;
  std::unique_ptr<GraphOps> graphs_;
  Ops* ops_;
  Mesh mesh_;
  Schedule schedule_;
  GptShape shape_;
  StepInput input_;  // of one micro-batch; before the stream that reads it
  std::unique_ptr<Stream> compute_;
  Arena weights_, activations_, scratch_arena_;
  Scratch scratch_;
  ParamList params_;
  std::deque<GptStage> stages_;  // [chunk]
  Tensor loss_;                  // [1] fp32: the head wants one
  UnitHooks no_hooks_;
  WeightGradQueue no_queue_;
  Context ctx_;
  StepBatches step_;
  std::deque<GptChunk> chunks_;
  std::vector<Tensor> boundary_buffers_;
  std::unique_ptr<Executor> executor_;
  FailureGuard guard_;  // last: it is the first to end
};

}  // namespace trivet
