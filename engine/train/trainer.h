// Trainer: what a step of a run is. Trains its rank (rank.h) one global batch at a time, evaluates it.
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

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/config/config.h"
#include "engine/data/prefetch.h"
#include "engine/fault/inject.h"
#include "engine/train/number_check.h"
#include "engine/train/rank.h"
#include "kernels/base/trace.h"
#include "parallel/comm/host_world.h"

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

// The micro-batches of the rank with that number in the world.
BatchPlan batch_plan_of(const Config& config, const Layout& layout, int rank);

class Trainer {
 public:
  struct Options {
    bool poison = false;              // for tests: NaN into whatever must not be read
    FaultInjector* faults = nullptr;  // null: none
    MakeBackend make_backend = trivet::make_backend;
  };
  // Collective over `world`, which is used for what is in host memory, and whose ranks hold the device's. `layout`,
  // `train` and `valid` (null: no evaluation), which follow batch_plan_of(), and what the options name outlive the
  // trainer.
  Trainer(const Config& config, const Layout& layout, Communicator& world, BatchSource& train, BatchSource* valid,
          const Options& options);
  Trainer(const Config& config, const Layout& layout, Communicator& world, BatchSource& train, BatchSource* valid)
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

  const Config& config() const { return config_; }
  int64_t steps_done() const { return step_; }
  int64_t skipped_steps() const { return numbers_.skipped(); }
  // Throws NumericsError where data-parallel ranks do not hold the same. Collective.
  void check_replicas();
  // Whether a checkpoint of the weights as they are now may become the latest: the last step was taken, and the
  // replicas agreed when they were last compared. REQUIRES: no step is out.
  bool numbers_ok() const { return numbers_.last_was_good() && replicas_agree_; }
  int64_t consumed_samples() const { return consumed_samples_; }
  Rank& rank() { return rank_; }
  const Mesh& mesh() const { return rank_.mesh; }
  Device& device() { return rank_.device; }
  RankState& state() { return rank_.state; }
  DataParallel& data_parallel() { return *rank_.data_parallel; }
  Trace& trace() { return trace_; }
  Communicator& world() { return host_.world(); }
  HostWorld& host() { return host_; }
  int threads() const { return threads_; }

 private:
  // A step that is queued, and whose result is still out.
  struct QueuedStep {
    StepResult result;
    size_t slot = 0;  // of Rank::host_numbers
  };

  void load_step(BatchSource& source, bool training, float loss_scale);
  double read_loss();
  void sum_over_stages_and_replicas(Tensor numbers);
  // Queues what makes of the step's gradients a decision, and the update.
  void queue_update(const StepResult& step);
  // The result of the step that is out. Throws NumericsError.
  StepResult read_result();
  void judge(StepResult& result, std::span<const float> numbers);
  // Gradients that are averaged over the ranks are larger by their number until then, and so is the loss.
  int64_t loss_multiplier() const { return config_.overlap.average_in_collective ? mesh().data->size() : 1; }

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
  const int threads_;
  Trace trace_;
  Rank rank_;
  BatchSource& train_;
  BatchSource* const valid_;
  const int deferred_heads_;
  const int64_t global_batch_;
  std::unique_ptr<Event> step_through_;  // the last step that was queued
  std::optional<QueuedStep> out_;
  std::unique_ptr<Communicator> replicas_;   // of the data-parallel group, in host memory; made when they are compared
  int64_t step_ = 0, consumed_samples_ = 0;  // with the step that is out
};

}  // namespace trivet
