#include "engine/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "base/text.h"
#include "engine/data/synthetic_batches.h"
#include "engine/train/diagnosis.h"
#include "engine/train/lr_schedule.h"

namespace trivet {

BatchPlan batch_plan_of(const Config& config, const Layout& layout, int rank) {
  return {.micro_batch_size = config.batch.micro_batch_size,
          .micro_batches = layout.micro_batches,
          .rank = position_of(rank, layout.mesh)[Axis::dp],
          .ranks = layout.mesh[Axis::dp],
          .ramp = layout.smaller.empty() ? BatchSizes{} : layout.batch_sizes};
}

namespace {

// If more labels than this are missing, all count as missing: fp32 sums over ranks cannot resolve a millionth.
float most_missing(int64_t labels) { return static_cast<float>((1 - 1e-6) * static_cast<double>(labels)); }

}  // namespace

Trainer::Trainer(const Config& config, const Layout& layout, Communicator& world, BatchSource* train,
                 const Options& options)
    : config_(config),
      faults_(options.faults),
      numbers_(config.train),
      host_(world),
      threads_(threads_of_rank(config, world)),
      rank_(config, layout, options.make_backend(config, world, threads_), world,
            {.poison = options.poison, .trace = &trace_, .memory = faults_ ? faults_->memory() : nullptr}),
      train_(train),
      deferred_heads_(deferred_heads_of(config, layout)),
      batch_sizes_(layout.batch_sizes),
      samples_of_micro_batches_(batch_sizes_.largest() / layout.micro_batches),
      step_through_(rank_.device.create_event()) {
  if (rank_.state.optimizer && options.draw_weights)
    rank_.initialize_weights(static_cast<uint64_t>(config.train.seed), threads_);
  if (!faults_ || rank_.state.flat.owned.empty()) return;
  const OwnedShard& shard = rank_.state.flat.owned.front();
  faults_->attach({.device = &rank_.device,
                   .stream = rank_.compute.get(),
                   .gradient = shard.grad,
                   .weight = rank_.state.optimizer->main_weights(shard),
                   .loss = rank_.state.loss});
}

int Trainer::load_step(BatchSource& source, bool training, float loss_scale, size_t most) {
  ScopedSpan span(rank_.host_row, {"load_batches", Category::host});
  const size_t m = std::min(most, rank_.state.optimizer ? static_cast<size_t>(rank_.executor.schedule().m) : 1);
  const std::span<HostBatch> batches = rank_.input.take().first(m);
  const GptShape& shape = rank_.state.shape;
  for (HostBatch& to : batches) {
    const Batch& batch = source.next();
    // Labels are created before the sequence is split: the last label of one part is the first token of another. If
    // nothing reads tokens, a batch contains none.
    const int64_t rows = batch.tokens.empty() ? 0 : shape.rank_seq();
    shape.cut().positions().for_runs(rows, [&](int64_t row, int64_t count, int64_t position) {
      const int64_t b = shape.micro_batch;
      std::copy_n(batch.tokens.begin() + position * b, count * b, to.tokens.begin() + row * b);
      std::copy_n(batch.labels.begin() + position * b, count * b, to.labels.begin() + row * b);
      if (!batch.position_ids.empty())
        std::copy_n(batch.position_ids.begin() + position * b, count * b, to.position_ids.begin() + row * b);
      if (batch.starts.empty()) return;
      std::copy_n(batch.starts.begin() + position * b, count * b, to.starts.begin() + row * b);
      for (int64_t i = 0; i < count * b; ++i) seen_keys_ += position + i / b + 1 - to.starts[row * b + i];
    });
    if (rows > 0 && config_.data.eod_mask_loss && rank_.state.has_head())
      missing_ += std::ranges::count(to.labels, kMaskedLabel);
    to.first_sample = batch.first_sample;
  }
  rank_.batches = {.batches = batches,
                   .training = training,
                   .loss_scale = loss_scale,
                   .defer_heads = std::min(deferred_heads_, static_cast<int>(m)),
                   .step = step_ + 1,
                   .faults = training && &source == train_ ? faults_ : nullptr};
  return static_cast<int>(m);
}

void Trainer::sum_over_stages_and_replicas(Tensor numbers) {
  if (mesh().pipeline->size() > 1) mesh().pipeline->all_reduce(numbers, Reduce::sum, *rank_.compute);
  if (mesh().data->size() > 1) mesh().data->all_reduce(numbers, Reduce::sum, *rank_.compute);
}

void Trainer::begin_loss() {
  const Tensor& numbers = rank_.state.missing_and_loss;
  rank_.ops.run(op::Fill{numbers, 0}, *rank_.compute);
  if (config_.data.eod_mask_loss)
    rank_.ops.run(op::Fill{numbers.slice(0, 1), static_cast<float>(missing_)}, *rank_.compute);
}

double Trainer::read_loss(int64_t labels) {
  Stream& compute = *rank_.compute;
  if (config_.data.eod_mask_loss)
    rank_.ops.run(op::Fill{rank_.state.missing_and_loss.slice(0, 1), static_cast<float>(missing_)}, compute);
  sum_over_stages_and_replicas(rank_.state.missing_and_loss);  // only the last stage has both; the others add zero
  float numbers[2] = {};
  rank_.device.copy_to_host(rank_.state.missing_and_loss, numbers, compute);
  compute.synchronize();
  if (numbers[0] > most_missing(labels))
    throw NumericsError(fmt::format("the evaluation after step {}: no label of its {} counts (data.eod_mask_loss)",
                                    step_, counted(labels, "token")));
  return numbers[1] * counted_share(numbers[0], static_cast<double>(labels));
}

void Trainer::queue_passes(BatchSource& source, int64_t batch, size_t most) {
  Stream& compute = *rank_.compute;
  rank_.use_micro_batches(batch / samples_of_micro_batches_);
  const double tokens = static_cast<double>(batch * rank_.state.shape.whole_seq());
  const float loss_scale = static_cast<float>(static_cast<double>(loss_multiplier()) / tokens);
  missing_ = seen_keys_ = 0;
  const int m = load_step(source, true, loss_scale, most);
  rank_.data_parallel->grads.set_micro_batches(m);
  rank_.data_parallel->grads.begin_step();
  begin_loss();
  over(rank_.graphs.get(), compute, [&] {
    rank_.executor.run(m);
    for (GptChunk& chunk : rank_.chunks) chunk.finish();
  });
  rank_.input.queued(compute);
}

void Trainer::warm_up(BatchSource& synthetic, size_t most) {
  check(!out_, "a step is pending");
  queue_passes(synthetic, batch_sizes_.of_step(consumed_samples_), most);
  rank_.finish_gradients();
  const double refused = -1;  // every loss and norm exceeds it
  queue_update({.step = step_ + 1}, {.loss = refused, .grad_norm = refused, .finite = true});
  rank_.compute->synchronize();
  rank_.executor.finish_sends();
}

void Trainer::prepare_device() {
  const bool trains = rank_.state.optimizer != nullptr;
  const GptShape& shape = rank_.state.shape;
  SyntheticBatches synthetic(shape.whole_seq() * shape.micro_batch, shape.vocab);
  rank_.ranks->only_prepare(true);
  if (trains) warm_up(synthetic, 2);  // of 2 micro-batches, the first overwrites the gradients, the second adds to them
  load_step(synthetic, false, 1, 1);
  rank_.executor.run_forward_only(1);
  rank_.input.queued(*rank_.compute);
  rank_.compute->synchronize();
  rank_.executor.finish_sends();
  rank_.ranks->only_prepare(false);
  host_.world().barrier();
  rank_.state.flat.weights_changed();  // the weights were quantised without the other ranks
  if (!trains) return;
  rank_.data_parallel->weights.updated();  // gathers the other ranks' parts, which were not sent above
  rank_.data_parallel->weights.finish();
  rank_.compute->synchronize();
}

std::optional<StepResult> Trainer::queue_step() {
  RankState& state = rank_.state;
  Stream& compute = *rank_.compute;
  const int64_t batch = batch_sizes_.of_step(consumed_samples_);
  StepResult next{.step = step_ + 1,
                  .samples = batch,
                  .consumed_samples = consumed_samples_ + batch,
                  .consumed_tokens = consumed_tokens_ + batch * config_.model.seq_length,
                  .start_ns = now_ns()};
  const HostRange range("step", next.step);
  trace_.set_measures(measures(next.step));
  begin(StepPhase::step);
  // 1. Forward and backward of all micro-batches; gradients accumulate, and are reduced as they are completed.
  queue_passes(*train_, batch);
  // 2. Reduce what has not been reduced yet.
  begin(StepPhase::reduce);
  rank_.finish_gradients();
  end(StepPhase::reduce);
  begin(StepPhase::optimizer);
  // The host reads the previous step's numbers only now, so that the device has work in the meantime. These numbers set
  // this step's limits.
  std::optional<StepResult> earlier;
  size_t slot = 0;
  if (out_) {
    slot = 1 - out_->slot;
    earlier = read_result();
    next.start_ns = earlier->end_ns;
  }
  next.seen_keys = seen_keys_;
  next.learning_rate = learning_rates(config_, next.step, next.consumed_samples).all;
  // 3. and 4. Then copy this step's numbers for the host to read.
  queue_update(next, numbers_.limits());
  rank_.device.copy_to_host(state.step_numbers,
                            static_cast<float*>(rank_.host_numbers.data()) + slot * RankState::kStepNumbers, compute);
  compute.record(*step_through_);
  end(StepPhase::optimizer);
  end(StepPhase::step);
  out_ = QueuedStep{next, slot};
  step_ = next.step;
  consumed_samples_ = next.consumed_samples;
  consumed_tokens_ = next.consumed_tokens;
  return earlier;
}

void Trainer::queue_update(const StepResult& step, const NumberCheck::Limits& limits) {
  RankState& state = rank_.state;
  Ops& ops = rank_.ops;
  Stream& compute = *rank_.compute;
  const auto number = [&](RankState::StepNumber which) { return state.step_number(which); };
  // 3. The norm of the whole model's gradient: each weight counts once, whichever ranks hold it (Param::first_copy).
  state.optimizer->compute_norm(ops, *mesh().model, *mesh().data, static_cast<float>(config_.optimizer.clip_grad),
                                state.loss, compute);
  ops.run(op::Convert{state.optimizer->norm(), number(RankState::kNorm)}, compute);
  ops.run(op::Convert{state.optimizer->norm(), number(RankState::kOwnNorm)}, compute);
  ops.run(op::Convert{state.optimizer->watched_norm(), number(RankState::kWatchedNorm)}, compute);
  ops.run(op::Convert{state.loss, number(RankState::kOwnLoss)}, compute);
  // The last stage's loss, summed over replicas.
  const Tensor sums = state.step_numbers.slice(RankState::kMissing, 4);
  sum_over_stages_and_replicas(sums);
  const int64_t labels = step.samples * config_.model.seq_length;
  if (config_.data.eod_mask_loss)
    state.optimizer->count_labels(ops, number(RankState::kMissing), labels,
                                  static_cast<float>(config_.optimizer.clip_grad),
                                  state.step_numbers.slice(RankState::kLoss, 5), compute);

  constexpr float kNone = std::numeric_limits<float>::infinity();
  const auto at_most = [](double limit, int64_t times) {
    return static_cast<float>(limit * static_cast<double>(times));
  };
  // The device decides, identically on every rank, without the host.
  ops.run(
      op::AcceptStep{
          .numbers = sums,
          .limits = {.at_most = {most_missing(labels), at_most(limits.loss, loss_multiplier()),
                                 at_most(limits.grad_norm, mesh().pipeline->size() * mesh().data->size()), kNone},
                     .finite = limits.finite},
          .accepted = number(RankState::kAccepted)},
      compute);
  search_non_finite(rank_);

  // Wait until the last gather has read the weights, then update the weights this rank owns by AdamW with clipped
  // gradients. A rejected step changes nothing.
  rank_.data_parallel->weights.finish();
  const LearningRates rates = learning_rates(config_, step.step, step.consumed_samples);
  state.optimizer->step(ops, number(RankState::kAccepted),
                        {.learning_rate = rates.all,
                         .decoupled_lr = rates.decoupled,
                         .weight_decay = weight_decay(config_, step.step, step.consumed_samples),
                         .step = step.step - numbers_.skipped()},
                        compute);
  rank_.data_parallel->weights.updated();  // 4. Gather the other ranks' parts.
}

StepResult Trainer::finish_step() {
  check(out_.has_value(), "no step is pending");
  StepResult result = read_result();
  rank_.compute->synchronize();   // throws if the stream has failed
  rank_.executor.finish_sends();  // their spans belong to the step
  result.end_ns = now_ns();
  return result;
}

StepResult Trainer::read_result() {
  step_through_->synchronize();
  const auto* numbers = static_cast<const float*>(rank_.host_numbers.data()) + out_->slot * RankState::kStepNumbers;
  StepResult result = out_->result;
  out_.reset();
  judge(result, {numbers, RankState::kStepNumbers});
  if (const int64_t interval = config_.train.check_weight_hash_across_dp_replicas_interval;
      interval > 0 && result.step % interval == 0)
    check_replicas();
  result.end_ns = now_ns();
  return result;
}

void Trainer::resume(const TrainState& state) {
  rank_.state.flat.weights_changed();
  if (rank_.state.optimizer) {
    rank_.state.optimizer->publish(rank_.ops, *rank_.compute);
    rank_.data_parallel->weights.updated();
    rank_.compute->synchronize();
  }
  step_ = state.step;
  consumed_samples_ = state.consumed_samples;
  consumed_tokens_ = state.consumed_tokens;
  numbers_.set_skipped(state.skipped_steps);
  if (train_) train_->restart(consumed_samples_);
}

void Trainer::fast_forward(int64_t steps) {
  check(!out_, "a step is pending");
  step_ = steps;
  consumed_samples_ = consumed_tokens_ = 0;
  if (train_) train_->restart(0);
}

std::optional<double> Trainer::evaluate(BatchSource& data, int64_t batches, int64_t labels,
                                        const std::function<bool()>& stop) {
  Stream& compute = *rank_.compute;
  rank_.use_micro_batches(batch_sizes_.largest() / samples_of_micro_batches_);
  data.restart(0);
  missing_ = 0;
  begin_loss();
  for (int64_t i = 0; i < batches; ++i) {
    if (stop()) return std::nullopt;
    for (int m = 0, done = 0; done < rank_.schedule.m; done += m) {
      m = load_step(data, false, 1.0f / static_cast<float>(labels));
      over(rank_.graphs.get(), compute, [&] { rank_.executor.run_forward_only(m); });
      rank_.input.queued(compute);
    }
  }
  const double loss = read_loss(labels);
  if (config_.train.check_for_nan_in_loss_and_grad && !std::isfinite(loss))
    throw NumericsError(fmt::format("the evaluation after step {}: the loss is {}", step_, loss));
  return loss;
}

void Trainer::judge(StepResult& result, std::span<const float> numbers) {
  result.loss = numbers[RankState::kLoss] / static_cast<double>(loss_multiplier());
  result.grad_norm = numbers[RankState::kOwnNorm];
  const bool finite = std::isfinite(numbers[RankState::kLoss]) && std::isfinite(numbers[RankState::kNorm]) &&
                      std::isfinite(numbers[RankState::kWatchedNorm]);
  const NumberCheck::Verdict verdict = numbers_.judge(
      {.loss = result.loss,
       .grad_norm = numbers[RankState::kNorm] / static_cast<double>(mesh().pipeline->size() * mesh().data->size()),
       .finite = finite,
       .taken = numbers[RankState::kAccepted] != 0,
       .counts = numbers[RankState::kMissing] <= most_missing(result.samples * config_.model.seq_length)});
  using Action = NumberCheck::Action;
  if (verdict.action == Action::take) return;
  NonFinite found;
  if (!finite) found = find_non_finite(rank_, numbers[RankState::kOwnLoss], host_);
  const std::string text =
      fmt::format("step {}: {}the loss is {}{}{}; the batch is samples {} to {} of the training set", result.step,
                  verdict.why == "not finite" ? "" : verdict.why + "; ", result.loss, finite ? "" : " and ", found.what,
                  result.consumed_samples - result.samples, result.consumed_samples - 1);
  if (verdict.action == Action::stop || found.in_weights)
    throw NumericsError(text + "; the weights are those before this step", found.rank);
  result.skipped = verdict.action == Action::skip;
  result.warning = result.skipped ? fmt::format("{}; the step is skipped, {} so far", text, numbers_.skipped()) : text;
}

void Trainer::check_replicas() {
  rank_.data_parallel->weights.finish();
  const std::vector<int> world_ranks = group_members(mesh().at, mesh().shape, kGradientAxes);
  if (!replicas_) replicas_ = host_.world().split(world_ranks, "replicas", comm_of("data"));
  HostWorld replicas(*replicas_);
  const ReplicaMismatch mismatch = compare_replicas(rank_, replicas, world_ranks);
  replicas_agree_ = mismatch.rank < 0;
  if (!replicas_agree_)
    throw NumericsError(
        fmt::format("step {}: {}; do not trust what was trained since the last comparison", step_, mismatch.what),
        world_ranks[static_cast<size_t>(mismatch.rank)]);
}

}  // namespace trivet
