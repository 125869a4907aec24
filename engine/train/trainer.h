// Trainer: one rank of a run. Builds the rank from a resolved config and its layout, trains it one global batch at a
// time, evaluates it.
//
// Every rank of the world has one and makes the same calls. A step:
//   executor.run: the forward and backward of all micro-batches, as this pipeline rank's schedule says; gradients
//                 accumulate in the flat buffer
//   grad_sync:    sums over the data-parallel group, beside the backward passes or behind them
//   adam:         norm over the model, clip, update
//   param_gather: where ranks share the update, whole weights again, beside the next forward passes or now
// The trainer prints nothing; run.h does.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/config/config.h"
#include "engine/data/gpt_dataset.h"
#include "engine/data/prefetch.h"
#include "engine/fault/inject.h"
#include "engine/model/gpt_chunk.h"
#include "engine/train/number_check.h"
#include "engine/train/rank_state.h"
#include "kernels/base/trace.h"
#include "kernels/ops.h"
#include "parallel/data/data_parallel.h"
#include "parallel/mesh.h"

namespace trivet {

struct StepResult {
  int64_t step = 0;  // counts from 1
  double loss = 0;   // mean cross-entropy a token over the global batch, nats
  double grad_norm = 0;
  double learning_rate = 0;
  int64_t start_ns = 0, end_ns = 0;  // of this rank's step
  int64_t pipeline_end_ns = 0;       // when the schedule was through
  bool skipped = false;              // the weights are those before the step
  std::string warning{};             // of numbers gone wrong; empty: none
};

class Trainer {
 public:
  // Collective over `world`. `train` and `valid` (null: no evaluation) outlive the trainer. poison, for tests: NaN into
  // whatever must not be read (PipelineOptions::poison_slots, ParamGather::connect). faults (null: none) outlive it.
  Trainer(const Config& config, const Layout& layout, Communicator& world, const GptDataset& train,
          const GptDataset* valid, bool poison = false, FaultInjector* faults = nullptr);

  // One global batch. Where the loss or a gradient is not finite, or a spike, all ranks alike do what the config says
  // (number_check.h), before the weights are touched: a NumericsError, or a skipped step; the text names the parameter,
  // the rank and the batch. NumericsError too where data-parallel replicas differ (replica_check.h).
  StepResult step();
  // Mean loss a token over the first `batches` global batches of the validation set, without dropout; the same batches
  // every time.
  double evaluate(int64_t batches);

  // Goes on from where `state` stands, with the weights and moments that stand in state() now: see state_tensors().
  void resume(const TrainState& state);

  // What the model expects after `context`, 1 to seq_length tokens: [vocab_size], the same on every rank.
  std::vector<float> next_token_logits(std::span<const int32_t> context);

  const Config& config() const { return config_; }
  int64_t steps_done() const { return step_; }
  int64_t skipped_steps() const { return numbers_.skipped(); }
  // Throws NumericsError where data-parallel ranks do not hold the same. Collective.
  void check_replicas();
  // Whether a checkpoint of the weights as they are now may become the latest: the last step was taken, and the replicas
  // agreed when they were last compared.
  bool numbers_ok() const { return numbers_.last_was_good() && replicas_agree_; }
  int64_t consumed_samples() const { return consumed_samples_; }
  const Mesh& mesh() const { return mesh_; }
  Trace& trace() { return trace_; }
  Device& device() { return *device_; }
  Ops& ops() { return *ops_; }
  Context& context() { return ctx_; }
  RankState& state() { return state_; }
  Communicator& world() { return world_; }
  Executor& executor() { return *executor_; }
  const Schedule& schedule() const { return schedule_; }
  int threads() const { return threads_; }

 private:
  BatchPlan batch_plan() const;
  void load_step(BatchLoader& loader, bool training, float loss_scale);
  double read_loss();
  void sum_over_stages_and_replicas(Tensor numbers);
  // Whether the step's gradients are to be used; fills in what the result says of it. Throws NumericsError.
  bool may_update(StepResult& result, float own_loss, double mean_norm, bool finite);

  void begin(StepPhase phase) {
    if (faults_) faults_->begin(phase, step_ + 1);
  }
  void end(StepPhase phase) {
    if (faults_) faults_->end(phase, step_ + 1);
  }

  const Config config_;
  FaultInjector* const faults_;
  NumberCheck numbers_;
  bool replicas_agree_ = true;
  Communicator& world_;
  std::unique_ptr<Communicator> linked_world_;  // whose groups have the config's emulated links
  Mesh mesh_;
  int threads_;
  int64_t global_batch_, micro_batches_;
  int deferred_heads_;
  Schedule schedule_;
  Trace trace_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Ops> ops_;
  RankState state_;
  DataParallel data_parallel_;
  std::unique_ptr<TensorLane> tensor_lane_;        // null: no tensor-parallel communication is overlapped
  std::unique_ptr<Communicator> embedding_group_;  // first and last stage, where they share the embedding; else null
  WeightGradQueue no_queue_;                       // of ctx_: outside a step no weight gradients are made
  Context ctx_;
  std::deque<WeightGradQueue> weight_grads_;  // [chunk]
  std::vector<Batch> batches_;                // of the step under way
  StepBatches step_batches_;
  std::deque<GptChunk> chunks_;  // [chunk]
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<BatchLoader> loader_;
  std::unique_ptr<BatchLoader> valid_loader_;
  int64_t step_ = 0, consumed_samples_ = 0;
};

// Threads that a rank computes with when the config does not say: this host's cores, as the process may use them, over
// the ranks of this host.
int default_threads_per_rank(const Communicator& world);

}  // namespace trivet
