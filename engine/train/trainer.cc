#include "engine/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <sched.h>
#include <thread>
#include <vector>

#include "engine/model/init.h"
#include "engine/train/logits.h"
#include "engine/train/lr_schedule.h"
#include "engine/train/non_finite.h"
#include "engine/train/replica_check.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

std::unique_ptr<Stream> make_compute_stream(Device& device, Trace& trace) {
  auto stream = device.create_compute_stream();
  stream->set_trace_row(trace.add_row("compute"));
  return stream;
}

// Where tied embeddings live on two stages, their ranks; null for the ranks between, and where one rank has both.
std::unique_ptr<Communicator> make_embedding_group(const Mesh& mesh, const GptShape& shape, const Schedule& schedule) {
  const int first = schedule.rank_of(0), last = schedule.rank_of(schedule.stages() - 1);
  if (!shape.tied_embeddings || first == last) return nullptr;
  const bool mine = mesh.at.pp == first || mesh.at.pp == last;
  auto group = mesh.pipeline->split(mine ? 0 : 1, mesh.at.pp, "embedding", Category::comm_pipeline);
  return mine ? std::move(group) : nullptr;
}

}  // namespace

int default_threads_per_rank(const Communicator& world) {
  cpu_set_t usable;
  const int online = static_cast<int>(std::thread::hardware_concurrency());
  const int cores = sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : online;
  int ranks = world.size();
  if (launched_world_size() > 0) {
    if (cores < online) return cores;  // the launcher has bound this process to cores of its own
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"})
      if (const char* value = std::getenv(name)) {
        ranks = std::max(1, std::atoi(value));
        break;
      }
  }
  return std::max(1, cores / ranks);
}

Trainer::Trainer(const Config& config, const Layout& layout, Communicator& world, const GptDataset& train,
                 const GptDataset* valid, bool poison, FaultInjector* faults)
    : config_(config),
      faults_(faults),
      numbers_(config.train),
      world_(world),
      linked_world_(with_links(world, links_of(config.comm))),
      mesh_(make_mesh(*linked_world_, layout.mesh)),
      threads_(config.device.threads_per_rank > 0 ? config.device.threads_per_rank : default_threads_per_rank(world)),
      global_batch_(config.batch.global_batch_size.value()),
      micro_batches_(layout.micro_batches),
      deferred_heads_(deferred_heads_of(config, layout)),
      schedule_(layout.schedule),
      device_(faults ? faults->limit_memory(create_cpu_device()) : create_cpu_device()),
      compute_(make_compute_stream(*device_, trace_)),
      ops_(create_cpu_ops(threads_)),
      state_(config_, layout, mesh_.at, *device_),
      data_parallel_(state_.grad_sync, state_.param_gather),
      tensor_lane_(state_.shape.overlaps_tensor_comm()
                       ? std::make_unique<TensorLane>(*mesh_.tensor, *device_, *compute_, &trace_)
                       : nullptr),
      embedding_group_(make_embedding_group(mesh_, state_.shape, schedule_)),
      ctx_{.ops = *ops_,
           .compute = *compute_,
           .tensor = *mesh_.tensor,
           .sequence_parallel = state_.shape.sequence_parallel,
           .weight_grads = no_queue_,
           .units = data_parallel_,
           .scratch = state_.scratch,
           .tensor_lane = tensor_lane_.get()} {
  const OverlapConfig& overlap = config.overlap;
  GradSync::Options reduce{.lanes = overlap.overlap_grad_reduce ? overlap.collectives_in_flight : 0,
                           .micro_batches = static_cast<int>(micro_batches_),
                           .op = overlap.average_in_collective ? Reduce::average : Reduce::sum};
  if (overlap.align_grad_reduce) reduce.delay = mesh_.at.pp;
  state_.grad_sync.connect(*ops_, *compute_, *device_, *mesh_.data, reduce, &trace_);
  ParamGather::Options gather{.lanes = overlap.overlap_param_gather ? overlap.collectives_in_flight : 0,
                              .poison = poison};
  if (overlap.align_param_gather) {
    for (const Op& op : schedule_.programs[static_cast<size_t>(mesh_.at.pp)])
      if (op.kind == OpKind::forward) gather.forward_chunks.push_back(op.chunk);
    gather.ahead = mesh_.at.pp;
  }
  state_.param_gather.connect(*ops_, *compute_, *device_, *mesh_.data, gather, &trace_);
  state_.param_gather.initialize([&](const Param& param) {
    initialize_weight(param, static_cast<uint64_t>(config.train.seed), threads_, *device_, *compute_);
  });
  state_.adam.reset(*ops_, *compute_);

  batches_.resize(static_cast<size_t>(micro_batches_));
  std::vector<Stage*> stages;
  for (GptStage& stage : state_.stages) {
    Context ctx{.ops = ctx_.ops,
                .compute = ctx_.compute,
                .tensor = ctx_.tensor,
                .sequence_parallel = ctx_.sequence_parallel,
                .weight_grads = weight_grads_.emplace_back(),
                .units = ctx_.units,
                .scratch = ctx_.scratch,
                .tensor_lane = ctx_.tensor_lane};
    stages.push_back(&chunks_.emplace_back(stage, ctx, *device_, step_batches_, state_.loss));
  }
  PipelineOptions pipeline = pipeline_options_of(config);
  pipeline.poison_slots = poison;
  executor_ = std::make_unique<Executor>(schedule_, *mesh_.pipeline, *device_, *compute_, &trace_,
                                         state_.boundary_buffers, pipeline);
  executor_->set_stages(std::move(stages));
  loader_ = std::make_unique<BatchLoader>(train, batch_plan(), config.data.prefetch);
  if (faults && !state_.flat.owned.empty()) {
    const OwnedPiece& piece = state_.flat.owned.front();
    const Tensor main = state_.adam.main_weights();
    faults->attach({.device = device_.get(),
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
  ScopedSpan span(compute_->trace_row(), {"load_batches", Category::host});
  for (Batch& batch : batches_) batch = loader.next();
  step_batches_ = {.batches = batches_,
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

StepResult Trainer::step() {
  StepResult result{.step = step_ + 1, .start_ns = now_ns()};
  const HostRange range("step", result.step);
  begin(StepPhase::step);
  // Gradients that are averaged over the ranks are larger by their number until then, and so is the loss.
  const int64_t averaged = config_.overlap.average_in_collective ? mesh_.shape.d : 1;
  load_step(*loader_, true, static_cast<float>(averaged) / static_cast<float>(global_batch_ * state_.shape.seq));
  state_.grad_sync.begin_step();
  ops_->fill(state_.loss, 0, *compute_);
  executor_->run();
  for (GptChunk& chunk : chunks_) chunk.finish();
  result.pipeline_end_ns = now_ns();
  begin(StepPhase::reduce);
  state_.grad_sync.finish(*mesh_.tensor, embedding_group_.get());
  end(StepPhase::reduce);
  begin(StepPhase::optimizer);
  const OptimizerConfig& optimizer = config_.optimizer;
  state_.adam.compute_norm(*ops_, *mesh_.tensor, *mesh_.model, *mesh_.data, static_cast<float>(optimizer.clip_grad),
                           state_.loss, *compute_);
  // The sums over pipeline and data ranks tell every rank of the world what it has to know to decide as all others do:
  // a number that is not finite anywhere makes them so.
  const Tensor sums = state_.step_sums;
  ops_->convert(state_.adam.norm(), sums.slice(1, 1), *compute_);
  ops_->convert(state_.adam.watched_norm(), sums.slice(2, 1), *compute_);
  ops_->convert(state_.loss, sums.slice(3, 1), *compute_);
  sum_over_stages_and_replicas(sums.slice(0, 3));
  float norm = 0;
  std::array<float, 4> numbers{};
  device_->copy_to_host(state_.adam.norm(), &norm, *compute_);
  device_->copy_to_host(sums, numbers.data(), *compute_);
  compute_->synchronize();
  result.loss = numbers[0] / static_cast<double>(averaged);
  result.grad_norm = norm;
  const bool finite = std::isfinite(numbers[0]) && std::isfinite(numbers[1]) && std::isfinite(numbers[2]);

  result.learning_rate = learning_rate(optimizer, result.step);
  const bool update = may_update(result, numbers[3], numbers[1] / (mesh_.shape.p * mesh_.shape.d), finite);
  if (update) state_.param_gather.finish();
  if (update)
    state_.adam.step(*ops_,
                     {.learning_rate = static_cast<float>(result.learning_rate),
                      .beta1 = static_cast<float>(optimizer.adam_beta1),
                      .beta2 = static_cast<float>(optimizer.adam_beta2),
                      .eps = static_cast<float>(optimizer.adam_eps),
                      .weight_decay = static_cast<float>(optimizer.weight_decay),
                      .step = result.step - numbers_.skipped()},
                     *compute_);
  if (update) state_.param_gather.updated();
  compute_->synchronize();
  end(StepPhase::optimizer);
  end(StepPhase::step);
  ++step_;
  consumed_samples_ += global_batch_;
  if (const int64_t interval = config_.train.check_weight_hash_across_dp_replicas_interval;
      interval > 0 && step_ % interval == 0)
    check_replicas();
  result.end_ns = now_ns();
  return result;
}

void Trainer::resume(const TrainState& state) {
  state_.adam.publish(*ops_, *compute_);
  state_.param_gather.updated();
  compute_->synchronize();
  step_ = state.step;
  consumed_samples_ = state.consumed_samples;
  numbers_.set_skipped(state.skipped_steps);
  loader_->restart(consumed_samples_);
}

double Trainer::evaluate(int64_t batches) {
  check(valid_loader_ != nullptr, "evaluation without a validation set");
  valid_loader_->restart(0);
  ops_->fill(state_.loss, 0, *compute_);
  for (int64_t i = 0; i < batches; ++i) {
    load_step(*valid_loader_, false, 1.0f / static_cast<float>(batches * global_batch_ * state_.shape.seq));
    executor_->run_forward_only(static_cast<int>(micro_batches_));
  }
  return read_loss();
}

std::vector<float> Trainer::next_token_logits(std::span<const int32_t> context) {
  const GptShape& shape = state_.shape;
  check(!context.empty() && static_cast<int64_t>(context.size()) <= shape.seq, "a context has 1 to seq_length tokens");
  // Batch entry 0 of micro-batch 0; what stands behind the context changes nothing before it.
  Batch& batch = batches_.front();
  batch.first_sample = 0;
  batch.tokens.assign(static_cast<size_t>(shape.tokens()), 0);
  batch.labels.assign(static_cast<size_t>(shape.tokens()), 0);
  for (size_t i = 0; i < context.size(); ++i) batch.tokens[i * static_cast<size_t>(shape.micro_batch)] = context[i];
  step_batches_ = {.batches = batches_, .training = false, .loss_scale = 0};
  executor_->run_forward_only(1);

  return read_logits({mesh_, schedule_, *executor_, state_.stages, state_.scratch, *ops_, *device_, *compute_}, shape,
                     static_cast<int64_t>(context.size()) - 1);
}

bool Trainer::may_update(StepResult& result, float own_loss, double mean_norm, bool finite) {
  const NumberCheck::Verdict verdict = numbers_.judge(result.loss, mean_norm, finite);
  using Action = NumberCheck::Action;
  if (verdict.action == Action::take) return true;
  NonFinite found;
  if (!finite) found = find_non_finite(state_, mesh_.at.pp, own_loss, world_, *device_, *compute_);
  const std::string text =
      fmt::format("step {}: {}the loss is {}{}{}; the batch is samples {} to {} of the training set", result.step,
                  verdict.why == "not finite" ? "" : verdict.why + "; ", result.loss, finite ? "" : " and ", found.what,
                  consumed_samples(), consumed_samples() + global_batch_ - 1);
  if (verdict.action == Action::stop)
    throw NumericsError(text + "; the weights are those before this step", found.rank);
  result.skipped = verdict.action == Action::skip;
  result.warning = result.skipped ? fmt::format("{}; the step is skipped, {} so far", text, numbers_.skipped()) : text;
  return !result.skipped;
}

void Trainer::check_replicas() {
  state_.param_gather.finish();
  std::vector<int> world_ranks;
  for (int dp = 0; dp < mesh_.shape.d; ++dp)
    world_ranks.push_back(rank_of({.tp = mesh_.at.tp, .pp = mesh_.at.pp, .dp = dp}, mesh_.shape));
  const ReplicaMismatch mismatch =
      compare_replicas(state_.flat, state_.adam, *mesh_.data, world_ranks, *device_, *compute_);
  replicas_agree_ = mismatch.rank < 0;
  if (!replicas_agree_)
    throw NumericsError(fmt::format("step {}: {}; what has been trained since the last comparison is not to be trusted",
                                    step_, mismatch.what),
                        world_ranks[static_cast<size_t>(mismatch.rank)]);
}

}  // namespace trivet
