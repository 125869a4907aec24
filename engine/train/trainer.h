// Trainer: one rank of a run. Builds the rank from a resolved config and its layout, trains it one global batch at a
// time, evaluates it.
//
// Every rank of the world has one and makes the same calls. A step:
//   executor.run: the forward and backward of all micro-batches, as this pipeline rank's schedule says; gradients
//                 accumulate in the flat buffer
//   grad_sync:    sums over the data-parallel group, beside the backward passes or behind them
//   adam:         norm over the model, clip, update: unless the device finds that a number has gone wrong
//   param_gather: where ranks share the update, whole weights again, beside the next forward passes or now
// All of it is queued on the device's streams; the host stops for nothing in between. It reads a step's loss and norm
// when the step is through: at once, or, so that the device never waits for the host, when it has queued the next one.
// The numbers are the same either way. The trainer prints nothing; run.h does.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/config/config.h"
#include "engine/data/gpt_dataset.h"
#include "engine/data/prefetch.h"
#include "engine/fault/inject.h"
#include "engine/model/gpt_chunk.h"
#include "engine/model/step_input.h"
#include "engine/train/backend.h"
#include "parallel/comm/host_world.h"
#include "engine/train/number_check.h"
#include "engine/train/rank_state.h"
#include "kernels/base/trace.h"
#include "kernels/ops.h"
#include "parallel/comm/world.h"
#include "parallel/data/data_parallel.h"
#include "parallel/mesh.h"

namespace trivet {

struct StepResult {
  int64_t step = 0;  // counts from 1
  double loss = 0;   // mean cross-entropy a token over the global batch, nats
  double grad_norm = 0;
  double learning_rate = 0;
  int64_t consumed_samples = 0;  // with those of this step
  // Of this rank's step; where steps are queued ahead, from the end of the last one on.
  int64_t start_ns = 0, end_ns = 0;
  bool skipped = false;   // the weights are those before the step
  std::string warning{};  // of numbers gone wrong; empty: none
};

class Trainer {
 public:
  struct Options {
    bool poison = false;              // for tests: NaN into whatever must not be read (PipelineOptions::poison_slots,
                                      // ParamGather::connect)
    FaultInjector* faults = nullptr;  // null: none
    MakeBackend make_backend = trivet::make_backend;
  };
  // Collective over `world`, which is used for what is in host memory, and whose ranks hold the device's. `train`,
  // `valid` (null: no evaluation) and what the options name outlive the trainer.
  Trainer(const Config& config, const Layout& layout, Communicator& world, const GptDataset& train,
          const GptDataset* valid, const Options& options);
  Trainer(const Config& config, const Layout& layout, Communicator& world, const GptDataset& train,
          const GptDataset* valid)
      : Trainer(config, layout, world, train, valid, Options{}) {}

  // One global batch. Where the loss or a gradient is not finite, or a spike, all ranks alike do what the config says
  // (number_check.h), and the weights are not touched: a NumericsError, or a skipped step; the text names the
  // parameter, the rank and the batch. NumericsError too where data-parallel replicas differ (replica_check.h).
  StepResult step() {
    queue_step();
    return finish_step();
  }
  // The same in two halves. queue_step: returns when the step is queued, with the result of the one before it, where
  // that is still out. finish_step: waits for the step that is out. A NumericsError of a step is then thrown when the
  // next one's forward and backward passes are queued, and before its update is.
  std::optional<StepResult> queue_step();
  StepResult finish_step();

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
  // Whether a checkpoint of the weights as they are now may become the latest: the last step was taken, and the
  // replicas agreed when they were last compared. REQUIRES: no step is out.
  bool numbers_ok() const { return numbers_.last_was_good() && replicas_agree_; }
  int64_t consumed_samples() const { return consumed_samples_; }
  const Mesh& mesh() const { return mesh_; }
  Trace& trace() { return trace_; }
  Device& device() { return *device_; }
  Ops& ops() { return *ops_; }
  const GraphOps* graphs() const { return graphs_.get(); }  // null: what is queued is not repeated as a whole
  Context& context() { return ctx_; }
  RankState& state() { return state_; }
  DataParallel& data_parallel() { return data_parallel_; }
  Communicator& world() { return host_.world(); }
  HostWorld& host() { return host_; }
  const std::string& exchange_name() const { return backend_.exchange_name; }
  const std::string& attention_name() const { return backend_.attention_name; }  // empty on a CPU
  Executor& executor() { return *executor_; }
  const Schedule& schedule() const { return schedule_; }
  int threads() const { return threads_; }

 private:
  // A step that is queued, and whose result is still out.
  struct QueuedStep {
    StepResult result;
    size_t slot = 0;  // of host_numbers_
  };

  BatchPlan batch_plan() const;
  void load_step(BatchLoader& loader, bool training, float loss_scale);
  double read_loss();
  void sum_over_stages_and_replicas(Tensor numbers);
  // Queues what makes of the step's gradients a decision, and the update.
  void queue_update(const StepResult& step);
  // The result of the step that is out. Throws NumericsError.
  StepResult read_result();
  void judge(StepResult& result, std::span<const float> numbers);
  // Gradients that are averaged over the ranks are larger by their number until then, and so is the loss.
  int64_t loss_multiplier() const { return config_.overlap.average_in_collective ? mesh_.shape.d : 1; }

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
  HostWorld host_;
  int threads_;
  Trace trace_;
  Backend backend_;
  Device* device_;
  std::unique_ptr<GraphOps> graphs_;
  Ops* ops_;
  std::unique_ptr<Communicator> linked_world_;  // of the device's memory; its groups have the config's emulated links
  Mesh mesh_;
  int64_t global_batch_, micro_batches_;
  int deferred_heads_;
  Schedule schedule_;
  // What queued copies read and write: they end when the streams do, and so before this.
  StepInput input_;
  HostBuffer host_numbers_;  // [2, kStepNumbers] fp32: of the last two steps
  std::unique_ptr<Stream> compute_;
  TraceRow* host_row_;
  RankState state_;
  DataParallel data_parallel_;
  std::unique_ptr<TensorLane> tensor_lane_;        // null: no tensor-parallel communication is overlapped
  std::unique_ptr<Communicator> embedding_group_;  // first and last stage, where they share the embedding; else null
  WeightGradQueue no_queue_;                       // of ctx_: outside a step no weight gradients are made
  Context ctx_;
  std::deque<WeightGradQueue> weight_grads_;  // [chunk]
  StepBatches step_batches_;                  // of the step under way
  std::deque<GptChunk> chunks_;               // [chunk]
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<BatchLoader> loader_;
  std::unique_ptr<BatchLoader> valid_loader_;
  std::unique_ptr<Event> step_through_;  // the last step that was queued
  std::optional<QueuedStep> out_;
  std::unique_ptr<Communicator> replicas_;   // of the data-parallel group, in host memory; made when they are compared
  int64_t step_ = 0, consumed_samples_ = 0;  // with the step that is out
  FailureGuard guard_;                       // last: it is the first to end
};

}  // namespace trivet
