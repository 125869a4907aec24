// Trainer: trains its rank (rank.h) one global batch at a time, and evaluates it. Every rank of the world has one and
// makes the same calls. A step:
//   1. executor.run   the forward and backward of all micro-batches, following this pipeline rank's schedule; gradients
//                     accumulate in the flat buffer
//   2. grad_sync      sums gradients over the data-parallel group, during or after the backward passes; then a few of
//                     them over the tensor and pipeline groups
//   3. optimizer      norm over the model, clip, update, unless the device refuses the step
//   4. param_gather   with a sharded optimizer, gathers the weights, during the next forward passes or immediately
// All of it is queued on the device's streams. The host reads a step's loss and norm immediately or, so that the device
// never waits for the host, after it has queued the next step; the results are the same.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>

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
  double loss = 0;   // mean cross-entropy per token over the global batch, nats
  double grad_norm = 0;
  double learning_rate = 0;
  int64_t samples = 0;                                // in the step
  int64_t consumed_samples = 0, consumed_tokens = 0;  // including this step's
  int64_t seen_keys = 0;  // over all queries of this rank's step, if attention stays within documents
  // When this rank's step began and ended; a step that was queued ahead begins at the end of the previous one.
  int64_t start_ns = 0, end_ns = 0;
  bool skipped = false;   // the weights are those before the step
  std::string warning{};  // about NaN, Inf or a spike; empty: none
};

// The micro-batches of world rank `rank`.
BatchPlan batch_plan_of(const Config& config, const Layout& layout, int rank);

class Trainer {
 public:
  struct Options {
    bool poison = false;              // for tests: fills memory that must not be read with NaN
    FaultInjector* faults = nullptr;  // null: none
    MakeBackend make_backend = trivet::make_backend;
    bool draw_weights = true;  // false: leaves them undefined, as nothing reads them
  };
  // Collective over `world`, the ranks in host memory. train: follows batch_plan_of(); null with train.skip_train. All
  // references except `config` must outlive the trainer.
  Trainer(const Config& config, const Layout& layout, Communicator& world, BatchSource* train, const Options& options);
  Trainer(const Config& config, const Layout& layout, Communicator& world, BatchSource* train)
      : Trainer(config, layout, world, train, Options{}) {}

  // Trains on one global batch. If the loss or a gradient is not finite, or the loss or norm spikes, all ranks follow
  // the configured policy (number_check.h): a warning, or, with unchanged weights, a skipped step or a NumericsError
  // that names parameter, rank and batch. Also throws NumericsError if data-parallel replicas differ (diagnosis.h).
  StepResult step() {
    queue_step();
    return finish_step();
  }
  // step() in two halves. queue_step returns when the step is queued, with the result of the previous step if that is
  // pending; it throws that step's NumericsError before it queues an update. finish_step waits for the pending step.
  std::optional<StepResult> queue_step();
  StepResult finish_step();

  // Runs a step on synthetic data whose update the device refuses: weights, moments and counters stay unchanged.
  // Afterwards, everything that a first step sets up exists: autotuned kernels, graphs, connections. REQUIRES: no step
  // is pending. Collective.
  void warm_up(BatchSource& synthetic) { warm_up(synthetic, kAll); }

  // Runs two micro-batches of synthetic data through this rank's chunks (forward, backward and a refused update), and
  // one forward pass without dropout; nothing is sent or received. Afterwards every kernel is loaded, and every plan,
  // workspace and buffer of a step exists, before a stream waits for another rank: a first use may wait for that
  // stream. Nothing that training reads changes. REQUIRES: no step is pending. Collective.
  void prepare_device();

  // Mean loss per token, without dropout, over the first `batches` global batches of `data` (by batch_plan_of() with
  // full batches), which hold `labels` labels. stop() is called before each batch and must return the same on all
  // ranks; true: the evaluation ends there, without a result.
  std::optional<double> evaluate(BatchSource& data, int64_t batches, int64_t labels, const std::function<bool()>& stop);

  // Resumes from `state`, with the weights and moments that state() holds now (state_tensors(), or read_weights()).
  void resume(const TrainState& state);

  // Fast-forwards schedules, dropout and bias correction to `steps`; restarts the training data. REQUIRES: no step is
  // pending.
  void fast_forward(int64_t steps);

  const Config& config() const { return config_; }
  int64_t steps_done() const { return step_; }
  int64_t skipped_steps() const { return numbers_.skipped(); }
  // Throws NumericsError if data-parallel replicas differ. Collective.
  void check_replicas();
  // True if the weights may be saved as the latest checkpoint: the last step was taken, and the replicas agreed when
  // they were last compared. REQUIRES: no step is pending.
  bool numbers_ok() const { return numbers_.last_was_good() && replicas_agree_; }
  int64_t consumed_samples() const { return consumed_samples_; }
  int64_t consumed_tokens() const { return consumed_tokens_; }
  Rank& rank() { return rank_; }
  const Mesh& mesh() const { return rank_.mesh; }
  Device& device() { return rank_.device; }
  RankState& state() { return rank_.state; }
  DataParallel& data_parallel() { return *rank_.data_parallel; }
  Trace& trace() { return trace_; }
  // True if that step's spans are measured. On a GPU not every step's are, as spans cost two events per operation.
  bool measures(int64_t step) const {
    return rank_.device.kind() == DeviceKind::cpu || config_.train.trace || step <= kMeasuredEvery ||
           step % std::max(kMeasuredEvery, config_.train.log_interval) == 0;
  }
  Communicator& world() { return host_.world(); }
  HostWorld& host() { return host_; }
  int threads() const { return threads_; }

 private:
  static constexpr int64_t kMeasuredEvery = 10;
  static constexpr size_t kAll = std::numeric_limits<size_t>::max();

  // A queued step whose result has not been read yet.
  struct QueuedStep {
    StepResult result;
    size_t slot = 0;  // index in Rank::host_numbers
  };

  // Returns the number of micro-batches it loads: a step's, at most `most`; one if the rank does not train. Adds to
  // seen_keys_, and adds to missing_ the number of labels of this rank's loss that eod_mask_loss excludes.
  int load_step(BatchSource& source, bool training, float loss_scale, size_t most = kAll);
  // Sets the loss to 0, and on the device the count of missing labels to missing_.
  void begin_loss();
  // The mean loss over those of `labels` labels that count.
  double read_loss(int64_t labels);
  void sum_over_stages_and_replicas(Tensor numbers);
  // Queues the forward and backward passes of a step of `batch` samples, or of its first `most` micro-batches.
  void queue_passes(BatchSource& source, int64_t batch, size_t most = kAll);
  void warm_up(BatchSource& synthetic, size_t most);
  // Queues norm, acceptance and update.
  void queue_update(const StepResult& step, const NumberCheck::Limits& limits);
  // The result of the pending step. Throws NumericsError.
  StepResult read_result();
  void judge(StepResult& result, std::span<const float> numbers);
  // If collectives average, the loss, and so the gradients, are multiplied by the number of data-parallel ranks.
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
  BatchSource* const train_;
  const int deferred_heads_;
  const BatchSizes batch_sizes_;
  const int64_t samples_of_micro_batches_;  // samples of one micro-batch on all data-parallel ranks
  std::unique_ptr<Event> step_through_;     // completes with the last queued step
  std::optional<QueuedStep> out_;
  std::unique_ptr<Communicator> replicas_;  // the data-parallel group, in host memory; created at the first comparison
  int64_t step_ = 0, consumed_samples_ = 0, consumed_tokens_ = 0;  // including the pending step
  int64_t missing_ = 0, seen_keys_ = 0;                            // of the batch being loaded
};

}  // namespace trivet
