#include "engine/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <vector>

#include "engine/model/init.h"
#include "engine/train/logits.h"
#include "engine/train/lr_schedule.h"
#include "engine/train/non_finite.h"
#include "engine/train/replica_check.h"

namespace trivet {
namespace {

// Where a fault is to leave the rank without memory.
Backend limited(Backend backend, FaultInjector* faults) {
  if (faults) backend.device = faults->limit_memory(std::move(backend.device));
  return backend;
}

std::unique_ptr<Stream> make_compute_stream(Device& device, Trace& trace) {
  auto stream = device.create_compute_stream();
  stream->set_trace_row(trace.add_row("compute"));
  return stream;
}

GradSync::Options grad_sync_options(const Config& config, const Layout& layout, const MeshPosition& at,
                                    const RankState& state, bool poison) {
  const OverlapConfig& overlap = config.overlap;
  return {.lanes = overlap.overlap_grad_reduce ? overlap.collectives_in_flight : 0,
          .micro_batches = static_cast<int>(layout.micro_batches),
          .op = overlap.average_in_collective ? Reduce::average : Reduce::sum,
          .delay = overlap.align_grad_reduce ? std::optional(at.pp) : std::nullopt,
          .registered = config.comm.nccl_ub ? &state.gradient_arena : nullptr,
          .poison = poison};
}

ParamGather::Options param_gather_options(const Config& config, const Layout& layout, const MeshPosition& at,
                                          const RankState& state, bool poison) {
  const OverlapConfig& overlap = config.overlap;
  ParamGather::Options options{.lanes = overlap.overlap_param_gather ? overlap.collectives_in_flight : 0,
                               .poison = poison,
                               .registered = config.comm.nccl_ub ? &state.weight_arena : nullptr};
  if (!overlap.align_param_gather) return options;
  for (const Op& op : layout.schedule.programs[static_cast<size_t>(at.pp)])
    if (op.kind == OpKind::forward) options.forward_chunks.push_back(op.chunk);
  options.ahead = at.pp;
  return options;
}

// Where tied embeddings live on two stages, their ranks; null for the ranks between, and where one rank has both.
std::unique_ptr<Communicator> make_embedding_group(const Mesh& mesh, const GptShape& shape, const Schedule& schedule) {
  const int first = schedule.rank_of(0), last = schedule.rank_of(schedule.stages() - 1);
  if (!shape.tied_embeddings || first == last) return nullptr;
  return mesh.pipeline->split({first, last}, "embedding", comm_of("pipeline"));
}

}  // namespace

Trainer::Trainer(const Config& config, const Layout& layout, Communicator& world, const GptDataset& train,
                 const GptDataset* valid, const Options& options)
    : config_(config),
      faults_(options.faults),
      numbers_(config.train),
      host_(world),
      threads_(threads_of_rank(config, world)),
      backend_(limited(options.make_backend(config, world, threads_), options.faults)),
      device_(backend_.device.get()),
      graphs_(make_graphs(config, backend_)),
      ops_(graphs_ ? graphs_.get() : backend_.ops.get()),
      linked_world_(with_links(backend_.exchange ? *backend_.exchange : world, links_of(config.comm))),
      mesh_(make_mesh(*linked_world_, layout.mesh)),
      global_batch_(config.batch.global_batch_size.value()),
      micro_batches_(layout.micro_batches),
      deferred_heads_(deferred_heads_of(config, layout)),
      schedule_(layout.schedule),
      input_(*device_, micro_batches_, config.batch.micro_batch_size * config.model.seq_length),
      host_numbers_(*device_, 2 * RankState::kStepNumbers * int64_t{sizeof(float)}),
      compute_(make_compute_stream(*device_, trace_)),
      host_row_(trace_.add_row("host")),
      state_(config_, layout, mesh_.at, *device_, config.comm.nccl_ub ? mesh_.data->buffer_memory() : nullptr),
      data_parallel_(state_.flat, *ops_, {*device_, *compute_, *mesh_.data, &trace_},
                     grad_sync_options(config, layout, mesh_.at, state_, options.poison),
                     param_gather_options(config, layout, mesh_.at, state_, options.poison)),
      tensor_lane_(state_.shape.overlaps_tensor_comm()
                       ? std::make_unique<TensorLane>(LaneSite{*device_, *compute_, *mesh_.tensor, &trace_})
                       : nullptr),
      embedding_group_(make_embedding_group(mesh_, state_.shape, schedule_)),
      ctx_{.ops = *ops_,
           .compute = *compute_,
           .tensor = {*mesh_.tensor, state_.shape.sequence_parallel},
           .weight_grads = no_queue_,
           .units = data_parallel_,
           .scratch = state_.scratch,
           .tensor_lane = tensor_lane_.get()},
      step_through_(device_->create_event()),
      guard_(*linked_world_) {
  state_.flat.initialize(
      [&](const Param& param) {
        initialize_weight(param, static_cast<uint64_t>(config.train.seed), threads_, *device_, *compute_);
      },
      *ops_, *compute_);
  state_.adam.reset(*ops_, *compute_);

  std::vector<Stage*> stages;
  for (GptStage& stage : state_.stages) {
    Context ctx{.ops = ctx_.ops,
                .compute = ctx_.compute,
                .tensor = ctx_.tensor,
                .weight_grads = weight_grads_.emplace_back(),
                .units = ctx_.units,
                .scratch = ctx_.scratch,
                .tensor_lane = ctx_.tensor_lane};
    stages.push_back(&chunks_.emplace_back(stage, ctx, *device_, step_batches_, state_.loss));
  }
  PipelineOptions pipeline = pipeline_options_of(config);
  pipeline.poison_slots = options.poison;
  executor_ = std::make_unique<Executor>(schedule_, *mesh_.pipeline, *device_, *compute_, &trace_,
                                         state_.boundary_buffers, pipeline);
  executor_->set_stages(std::move(stages));
  loader_ = std::make_unique<BatchLoader>(train, batch_plan(), config.data.prefetch);
  if (faults_ && !state_.flat.owned.empty()) {
    const OwnedPiece& piece = state_.flat.owned.front();
    const Tensor main = state_.adam.main_weights();
    faults_->attach({.device = device_,
                     .stream = compute_.get(),
                     .gradient = piece.grad,
                     .weight = main ? main.slice(piece.local, piece.weight.numel()) : piece.weight,
                     .loss = state_.loss});
  }
  if (valid) valid_loader_ = std::make_unique<BatchLoader>(*valid, batch_plan(), config.data.prefetch);
}

BatchPlan Trainer::batch_plan() const {
  return {.micro_batch_size = config_.batch.micro_batch_size,
          .micro_batches = micro_batches_,
          .rank = mesh_.at.dp,
          .ranks = mesh_.shape.d};
}

void Trainer::load_step(BatchLoader& loader, bool training, float loss_scale) {
  ScopedSpan span(host_row_, {"load_batches", Category::host});
  const std::span<HostBatch> batches = input_.take();
  for (HostBatch& to : batches) {
    const Batch& batch = loader.next();
    std::copy(batch.tokens.begin(), batch.tokens.end(), to.tokens.begin());
    std::copy(batch.labels.begin(), batch.labels.end(), to.labels.begin());
    to.first_sample = batch.first_sample;
  }
  step_batches_ = {.batches = batches,
                   .training = training,
                   .loss_scale = loss_scale,
                   .defer_heads = deferred_heads_,
                   .step = step_ + 1,
                   .hook = training ? faults_ : nullptr};
}

void Trainer::sum_over_stages_and_replicas(Tensor numbers) {
  if (mesh_.shape.p > 1) mesh_.pipeline->all_reduce(numbers, Reduce::sum, *compute_);
  if (mesh_.shape.d > 1) mesh_.data->all_reduce(numbers, Reduce::sum, *compute_);
}

double Trainer::read_loss() {
  sum_over_stages_and_replicas(state_.loss);  // only the last stage has a loss; the others add zero
  float loss = 0;
  device_->copy_to_host(state_.loss, &loss, *compute_);
  compute_->synchronize();
  return loss;
}

std::optional<StepResult> Trainer::queue_step() {
  StepResult next{.step = step_ + 1, .consumed_samples = consumed_samples_ + global_batch_, .start_ns = now_ns()};
  const HostRange range("step", next.step);
  begin(StepPhase::step);
  const double samples = static_cast<double>(global_batch_ * state_.shape.seq);
  load_step(*loader_, true, static_cast<float>(static_cast<double>(loss_multiplier()) / samples));
  data_parallel_.grads.begin_step();
  ops_->run(op::Fill{state_.loss, 0}, *compute_);
  over(graphs_.get(), *compute_, [&] {
    executor_->run();
    for (GptChunk& chunk : chunks_) chunk.finish();
  });
  input_.queued(*compute_);
  begin(StepPhase::reduce);
  data_parallel_.grads.finish(*mesh_.tensor, embedding_group_.get());
  end(StepPhase::reduce);
  begin(StepPhase::optimizer);
  // The step before has been through for a while, or is now. What it tells decides what this one may be.
  std::optional<StepResult> earlier;
  size_t slot = 0;
  if (out_) {
    slot = 1 - out_->slot;
    earlier = read_result();
    next.start_ns = earlier->end_ns;
  }
  next.learning_rate = learning_rate(config_.optimizer, next.step);
  queue_update(next);
  device_->copy_to_host(state_.step_numbers, static_cast<float*>(host_numbers_.data()) + slot * RankState::kStepNumbers,
                        *compute_);
  compute_->record(*step_through_);
  end(StepPhase::optimizer);
  end(StepPhase::step);
  out_ = QueuedStep{next, slot};
  step_ = next.step;
  consumed_samples_ = next.consumed_samples;
  return earlier;
}

void Trainer::queue_update(const StepResult& step) {
  const OptimizerConfig& optimizer = config_.optimizer;
  const auto number = [&](RankState::StepNumber which) { return state_.step_number(which); };
  state_.adam.compute_norm(*ops_, *mesh_.model, *mesh_.data, static_cast<float>(optimizer.clip_grad), state_.loss,
                           *compute_);
  ops_->run(op::Convert{state_.adam.norm(), number(RankState::kNorm)}, *compute_);
  ops_->run(op::Convert{state_.adam.norm(), number(RankState::kOwnNorm)}, *compute_);
  ops_->run(op::Convert{state_.adam.watched_norm(), number(RankState::kWatchedNorm)}, *compute_);
  ops_->run(op::Convert{state_.loss, number(RankState::kOwnLoss)}, *compute_);
  const Tensor sums = state_.step_numbers.slice(RankState::kLoss, 3);
  sum_over_stages_and_replicas(sums);

  const NumberCheck::Limits limits = numbers_.limits();
  constexpr float kNone = std::numeric_limits<float>::infinity();
  const auto at_most = [](double limit, int64_t times) {
    return static_cast<float>(limit * static_cast<double>(times));
  };
  ops_->run(op::JudgeStep{.numbers = sums,
                          .limits = {.at_most = {at_most(limits.loss, loss_multiplier()),
                                                 at_most(limits.grad_norm, mesh_.shape.p * mesh_.shape.d), kNone},
                                     .finite = limits.finite},
                          .proceed = number(RankState::kProceed)},
            *compute_);
  search_non_finite(state_, *ops_, *compute_);

  data_parallel_.weights.finish();
  state_.adam.step(*ops_, number(RankState::kProceed),
                   {.learning_rate = static_cast<float>(step.learning_rate),
                    .beta1 = static_cast<float>(optimizer.adam_beta1),
                    .beta2 = static_cast<float>(optimizer.adam_beta2),
                    .eps = static_cast<float>(optimizer.adam_eps),
                    .weight_decay = static_cast<float>(optimizer.weight_decay),
                    .step = step.step - numbers_.skipped()},
                   *compute_);
  data_parallel_.weights.updated();
}

StepResult Trainer::finish_step() {
  check(out_.has_value(), "no step is out");
  StepResult result = read_result();
  compute_->synchronize();  // a stream that has failed says so
  result.end_ns = now_ns();
  return result;
}

StepResult Trainer::read_result() {
  step_through_->synchronize();
  const auto* numbers = static_cast<const float*>(host_numbers_.data()) + out_->slot * RankState::kStepNumbers;
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
  state_.adam.publish(*ops_, *compute_);
  data_parallel_.weights.updated();
  compute_->synchronize();
  step_ = state.step;
  consumed_samples_ = state.consumed_samples;
  numbers_.set_skipped(state.skipped_steps);
  loader_->restart(consumed_samples_);
}

double Trainer::evaluate(int64_t batches) {
  check(valid_loader_ != nullptr, "evaluation without a validation set");
  valid_loader_->restart(0);
  ops_->run(op::Fill{state_.loss, 0}, *compute_);
  for (int64_t i = 0; i < batches; ++i) {
    load_step(*valid_loader_, false, 1.0f / static_cast<float>(batches * global_batch_ * state_.shape.seq));
    over(graphs_.get(), *compute_, [&] { executor_->run_forward_only(static_cast<int>(micro_batches_)); });
    input_.queued(*compute_);
  }
  return read_loss();
}

std::vector<float> Trainer::next_token_logits(std::span<const int32_t> context) {
  const GptShape& shape = state_.shape;
  check(!context.empty() && static_cast<int64_t>(context.size()) <= shape.seq, "a context has 1 to seq_length tokens");
  const std::span<HostBatch> batches = input_.take();
  batches.front().fill_with(context, static_cast<size_t>(shape.micro_batch));
  step_batches_ = {.batches = batches, .training = false, .loss_scale = 0};
  over(graphs_.get(), *compute_, [&] { executor_->run_forward_only(1); });
  input_.queued(*compute_);

  return read_logits({mesh_, schedule_, *executor_, state_.stages, state_.scratch, *ops_, *device_, *compute_}, shape,
                     static_cast<int64_t>(context.size()) - 1);
}

void Trainer::judge(StepResult& result, std::span<const float> numbers) {
  result.loss = numbers[RankState::kLoss] / static_cast<double>(loss_multiplier());
  result.grad_norm = numbers[RankState::kOwnNorm];
  const bool finite = std::isfinite(numbers[RankState::kLoss]) && std::isfinite(numbers[RankState::kNorm]) &&
                      std::isfinite(numbers[RankState::kWatchedNorm]);
  const NumberCheck::Verdict verdict =
      numbers_.judge({.loss = result.loss,
                      .grad_norm = numbers[RankState::kNorm] / static_cast<double>(mesh_.shape.p * mesh_.shape.d),
                      .finite = finite,
                      .taken = numbers[RankState::kProceed] != 0});
  using Action = NumberCheck::Action;
  if (verdict.action == Action::take) return;
  NonFinite found;
  if (!finite) found = find_non_finite(state_, mesh_.at.pp, numbers[RankState::kOwnLoss], host_, *device_, *compute_);
  const std::string text =
      fmt::format("step {}: {}the loss is {}{}{}; the batch is samples {} to {} of the training set", result.step,
                  verdict.why == "not finite" ? "" : verdict.why + "; ", result.loss, finite ? "" : " and ", found.what,
                  result.consumed_samples - global_batch_, result.consumed_samples - 1);
  if (verdict.action == Action::stop)
    throw NumericsError(text + "; the weights are those before this step", found.rank);
  result.skipped = verdict.action == Action::skip;
  result.warning = result.skipped ? fmt::format("{}; the step is skipped, {} so far", text, numbers_.skipped()) : text;
}

void Trainer::check_replicas() {
  data_parallel_.weights.finish();
  std::vector<int> world_ranks;
  for (int dp = 0; dp < mesh_.shape.d; ++dp)
    world_ranks.push_back(rank_of({.tp = mesh_.at.tp, .pp = mesh_.at.pp, .dp = dp}, mesh_.shape));
  if (!replicas_) replicas_ = host_.world().split(world_ranks, "replicas", comm_of("data"));
  HostWorld replicas(*replicas_);
  const ReplicaMismatch mismatch =
      compare_replicas(state_.flat, state_.adam, replicas, world_ranks, *device_, *compute_);
  replicas_agree_ = mismatch.rank < 0;
  if (!replicas_agree_)
    throw NumericsError(fmt::format("step {}: {}; what has been trained since the last comparison is not to be trusted",
                                    step_, mismatch.what),
                        world_ranks[static_cast<size_t>(mismatch.rank)]);
}

}  // namespace trivet
