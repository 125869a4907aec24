#include "engine/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <sched.h>
#include <thread>
#include <vector>

#include "engine/model/init.h"
#include "engine/train/lr_schedule.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

std::unique_ptr<Stream> make_compute_stream(Device& device, Trace& trace) {
  auto stream = device.create_compute_stream();
  stream->set_trace_row(trace.add_row("compute"));
  return stream;
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

Trainer::Trainer(const Config& config, Communicator& world, const GptDataset& train, const GptDataset* valid)
    : config_(config),
      world_(world),
      valid_(valid),
      mesh_(make_mesh(world, mesh_shape_of(config, world.size()))),
      threads_(config.device.threads_per_rank > 0 ? config.device.threads_per_rank : default_threads_per_rank(world)),
      global_batch_(config.batch.global_batch_size.value()),
      micro_batches_(global_batch_ / (config.batch.micro_batch_size * mesh_.shape.d)),
      device_(create_cpu_device()),
      compute_(make_compute_stream(*device_, trace_)),
      ops_(create_cpu_ops(threads_)),
      state_(config_, mesh_.at, *device_),
      ctx_{.ops = *ops_,
           .compute = *compute_,
           .tensor = *mesh_.tensor,
           .sequence_parallel = state_.shape.sequence_parallel,
           .weight_grads = weight_grads_,
           .scratch = state_.scratch} {
  ops_->fill(state_.flat.weights, 0, *compute_);  // the gaps between parameters
  initialize_weights(state_.params, static_cast<uint64_t>(config.train.seed), threads_, *device_, *compute_);
  state_.adam.reset(*ops_, *compute_);
  loader_ = std::make_unique<BatchLoader>(train, batch_plan(0), static_cast<int>(config.data.prefetch));
}

BatchPlan Trainer::batch_plan(int64_t first_sample) const {
  return {.first_sample = first_sample,
          .micro_batch = config_.batch.micro_batch_size,
          .data_rank = mesh_.at.dp,
          .data_size = mesh_.shape.d};
}

void Trainer::load_batch(const Batch& batch) {
  device_->copy_to_device(batch.tokens.data(), state_.stage.tokens(0), *compute_);
  device_->copy_to_device(batch.labels.data(), state_.stage.labels(0), *compute_);
}

double Trainer::read_loss() {
  if (mesh_.shape.d > 1) mesh_.data->all_reduce(state_.loss, Reduce::sum, *compute_);
  float loss = 0;
  device_->copy_to_host(state_.loss, &loss, *compute_);
  compute_->synchronize();
  return loss;
}

StepResult Trainer::step() {
  StepResult result{.step = step_ + 1, .start_ns = now_ns()};
  const float token_weight = 1.0f / static_cast<float>(global_batch_ * state_.shape.seq);
  ops_->fill(state_.flat.grads, 0, *compute_);
  ops_->fill(state_.loss, 0, *compute_);
  for (int64_t i = 0; i < micro_batches_; ++i) {
    const Batch& batch = loader_->next();
    load_batch(batch);
    const MicroBatch micro_batch{.first_sample = batch.first_sample, .training = true, .loss_scale = token_weight};
    {
      ScopedSpan span(compute_->trace_row(), {"forward", Category::phase, 0, static_cast<int>(i)});
      state_.stage.forward(ctx_, 0, micro_batch, state_.loss);
    }
    ScopedSpan span(compute_->trace_row(), {"backward", Category::phase, 0, static_cast<int>(i)});
    state_.stage.backward(ctx_, 0, micro_batch, state_.residual_grad);
  }
  state_.grad_reduce.run(*ops_, *mesh_.data, *mesh_.tensor, *compute_);
  result.loss = read_loss();

  state_.adam.compute_norm(*ops_, *mesh_.tensor, *mesh_.model, static_cast<float>(config_.optimizer.clip_grad),
                           *compute_);
  float norm = 0;
  device_->copy_to_host(state_.adam.norm(), &norm, *compute_);
  compute_->synchronize();
  result.grad_norm = norm;
  if (!std::isfinite(result.loss) || !std::isfinite(norm)) report_non_finite(result.loss);

  const OptimizerConfig& optimizer = config_.optimizer;
  result.learning_rate = learning_rate(optimizer, result.step);
  state_.adam.step(*ops_,
                   {.learning_rate = static_cast<float>(result.learning_rate),
                    .beta1 = static_cast<float>(optimizer.adam_beta1),
                    .beta2 = static_cast<float>(optimizer.adam_beta2),
                    .eps = static_cast<float>(optimizer.adam_eps),
                    .weight_decay = static_cast<float>(optimizer.weight_decay),
                    .step = result.step},
                   *compute_);
  compute_->synchronize();
  ++step_;
  result.end_ns = now_ns();
  return result;
}

double Trainer::evaluate(int64_t batches) {
  check(valid_ != nullptr, "evaluation without a validation set");
  BatchLoader loader(*valid_, batch_plan(0), static_cast<int>(config_.data.prefetch));
  const float token_weight = 1.0f / static_cast<float>(batches * global_batch_ * state_.shape.seq);
  ops_->fill(state_.loss, 0, *compute_);
  for (int64_t i = 0; i < batches * micro_batches_; ++i) {
    const Batch& batch = loader.next();
    load_batch(batch);
    state_.stage.forward(ctx_, 0, {.first_sample = batch.first_sample, .training = false, .loss_scale = token_weight},
                         state_.loss);
  }
  return read_loss();
}

void Trainer::report_non_finite(double loss) {
  // Every rank looks through its own gradients; the first rank that finds something tells all, so that all throw alike.
  std::array<char, 512> text{};
  for (const FlatSegment& segment : state_.flat.segments) {
    std::vector<float> grad(static_cast<size_t>(segment.param->grad.numel()));
    device_->copy_to_host(segment.param->grad, grad.data(), *compute_);
    compute_->synchronize();
    const auto bad = std::find_if(grad.begin(), grad.end(), [](float g) { return !std::isfinite(g); });
    if (bad == grad.end()) continue;
    const auto count = std::count_if(bad, grad.end(), [](float g) { return !std::isfinite(g); });
    const std::string found =
        fmt::format("{} of the {} gradients of {} on rank {} are not finite, the first is {} at {}", count, grad.size(),
                    segment.param->spec.name, world_.rank(), *bad, bad - grad.begin());
    std::strncpy(text.data(), found.c_str(), text.size() - 1);
    break;
  }
  // Gradients are listed from the output backwards, so the last rank with a find is as good as the first: take the
  // smallest rank number.
  Tensor first{state_.adam.norm()};
  const float mine = text[0] ? -static_cast<float>(world_.rank()) : -static_cast<float>(world_.size());
  device_->copy_to_device(&mine, first, *compute_);
  world_.all_reduce(first, Reduce::max, *compute_);
  float smallest = 0;
  device_->copy_to_host(first, &smallest, *compute_);
  compute_->synchronize();
  const int finder = static_cast<int>(-smallest);
  std::string where = "all gradients are finite";
  if (finder < world_.size()) {
    Scratch::Frame frame(state_.scratch);
    const Tensor carrier = frame.tensor(DType::u8, {static_cast<int64_t>(text.size())});
    device_->copy_to_device(text.data(), carrier, *compute_);
    world_.broadcast(carrier, finder, *compute_);
    device_->copy_to_host(carrier, text.data(), *compute_);
    compute_->synchronize();
    where = text.data();
  }
  throw NumericsError(
      fmt::format("step {}: the loss is {} and {}; the batch is samples {} to {} of the training set; "
                  "the weights are those before this step",
                  step_ + 1, loss, where, consumed_samples(), consumed_samples() + global_batch_ - 1));
}

}  // namespace trivet
