#include "tools/mlperf/procedure.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fmt/format.h>
#include <string>
#include <utility>

#include "base/host.h"
#include "engine/checkpoint/store.h"
#include "engine/data/synthetic_batches.h"
#include "engine/train/lr_schedule.h"
#include "engine/train/resume.h"

namespace trivet {
namespace {

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string log_file(const Config& config) { return config.train.run_dir + "/mlperf.log"; }

// The precision's name in ruleset 6.1.0.
std::string precision_word(DType dtype) { return dtype == DType::bf16 ? "bfloat16" : std::string(word_of(dtype)); }

}  // namespace

bool clear_caches(const std::string& command, HostWorld& host, int64_t boot) {
  const std::vector<int64_t> hosts = host.gather(boot);
  const bool first = std::ranges::find(hosts, boot) - hosts.begin() == host.rank();
  return host.sum<int64_t>(first && std::system(command.c_str()) != 0 ? 1 : 0) == 0;
}

mlperf::Description description_of(const Rank& rank, const Config& engine, const mlperf::Benchmark& benchmark,
                                   int64_t first_step) {
  const OptimizerConfig& optimizer = engine.optimizer;
  const LrSpan span = lr_span_of(engine);
  const GptShape& shape = rank.state.shape;
  const std::string precision = precision_word(shape.dtype), linear = shape.fp8.format == Fp8::none ? precision : "fp8";
  // Tensor-parallel ranks gather the operands of linear layers, data-parallel ranks the weights.
  const bool sends_fp8 = shape.sequence_parallel || rank.state.flat.options.gathers_fp8;
  const std::string name = benchmark.constant("opt_name")->get<std::string>(), adam = "opt_" + name + "_";
  mlperf::Description run = {
      {"seed", engine.train.seed},
      {"global_batch_size", rank.layout.batch_sizes.largest()},
      {"opt_name", name},
      {adam + "beta_1", optimizer.adam_beta1},
      {adam + "beta_2", optimizer.adam_beta2},
      {adam + "epsilon", optimizer.adam_eps},
      {name == "adam" ? "opt_weight_decay" : adam + "weight_decay", optimizer.weight_decay},
      {"opt_gradient_clip_norm", optimizer.clip_grad},
      {"opt_base_learning_rate", optimizer.lr},
      {"opt_end_learning_rate", learning_rates(engine, *span.decay + 1, 0).all},
      {"opt_learning_rate_warmup_steps", *span.warmup},
      // GPT-3's rules count the whole schedule; those of the other benchmarks, only the part after the warm-up.
      {"opt_learning_rate_decay_steps", *span.decay - (benchmark.counts_tokens ? 0 : *span.warmup)},
      {"opt_learning_rate_decay_schedule", fmt::format("{} with linear warmup", word_of(optimizer.lr_decay_style))},
      {"max_steps", engine.train.train_iters},
      {"gradient_accumulation_steps", rank.schedule.m},
      {"micro_batch_size", shape.micro_batch},
      {"max_sequence_length", shape.whole_seq()},
      {"target_accuracy", benchmark.target},
      {"tensor_parallelism", rank.mesh.tensor->size()},
      {"pipeline_parallelism", rank.mesh.pipeline->size()},
      {"context_parallelism", rank.mesh.shape[Axis::cp]},
      {"expert_parallelism", 1},
      {"lowest_numerical_precision_in_linear", linear},
      {"lowest_numerical_precision_in_attn", precision},
      {"lowest_numerical_precision_in_comm", sends_fp8 ? linear : precision}};
  if (benchmark.starts_from_checkpoint()) run["init_checkpoint_step"] = first_step;
  return run;
}

std::unique_ptr<RunProcedure> MlperfRun::begin(const LoadedConfig& loaded, bool from_checkpoint, Communicator& world) {
  const Config& config = loaded.config;
  const auto benchmark = benchmark_of(mlperf_of(config));
  const bool wants_checkpoint = benchmark->starts_from_checkpoint();
  if (wants_checkpoint != from_checkpoint)
    throw ConfigError(
        fmt::format("--resume: by the rules {} starts from {}", benchmark->name,
                    wants_checkpoint ? "a checkpoint; expected its path" : "random weights; leave it out"));
  if (file_exists(log_file(config)))
    throw ConfigError(fmt::format("train.run_dir: {} is the log of another run, expected a folder for this run alone",
                                  log_file(config)));
  if (!CheckpointStore(checkpoints_folder(config.train.run_dir)).steps().empty())
    throw ConfigError(
        fmt::format("train.run_dir: {} has the checkpoints of another run, expected a folder for this run alone",
                    config.train.run_dir));
  return std::unique_ptr<RunProcedure>(new MlperfRun(*benchmark, loaded, world));
}

MlperfRun::MlperfRun(const mlperf::Benchmark& benchmark, const LoadedConfig& loaded, Communicator& world)
    : config_(loaded.config),
      config_file_(loaded.path),
      benchmark_(benchmark),
      interval_(config_.train.eval_interval),
      skipped_(mlperf_of(config_).skipped_evaluations),
      batch_(*config_.batch.global_batch_size),
      log_(
          benchmark,
          [this, writes = world.rank() == 0](const std::string& line) {
            if (!writes) return;
            if (file_) lost_ |= !file_->append(line);
            else pending_ += line;
          },
          now_ms) {
  HostWorld host(world);
  const MlperfConfig& c = mlperf_of(config_);
  const std::string& command = c.cache_clear;
  const bool cleared = !command.empty() && clear_caches(command, host, boot_number());
  if (!command.empty() && !cleared && world.rank() == 0)
    write_stderr(fmt::format("mlperf.cache_clear: \"{}\" failed; the log says so\n", command));
  log_.start({{"submission_org", c.submission_org},
              {"submission_division", word_of(c.division)},
              {"submission_status", word_of(c.submission_status)},
              {"submission_platform", c.submission_platform}},
             cleared);
}

void MlperfRun::start(Trainer& trainer, int64_t train_samples, int64_t eval_samples, int64_t eval_labels) {
  trainer_ = &trainer;
  if (trainer.world().rank() == 0) {
    file_.emplace(log_file(config_), AppendFile::Start::empty,
                  [](const std::string& text) { write_stderr(text + '\n'); });
    lost_ = !file_->append(std::exchange(pending_, {}));
  }
  first_step_ = (trainer.consumed_samples() + batch_ - 1) / batch_;
  trainer.fast_forward(first_step_);
  mlperf::Description described = description_of(trainer.rank(), trainer.config(), benchmark_, first_step_);
  // GPT-3 logs the dataset's tokens: all labels plus the first token, which is not a label. It logs train_samples when
  // it stops.
  described["eval_samples"] = benchmark_.counts_tokens ? eval_labels + 1 : eval_samples;
  if (!benchmark_.counts_tokens) described["train_samples"] = train_samples;
  described["config_filename"] = config_file_;
  log_.describe(described);
  const GptShape& shape = trainer.state().shape;
  SyntheticBatches batches(shape.whole_seq() * shape.micro_batch, shape.vocab);
  for (int64_t i = 0; i < mlperf_of(config_).warmup_steps; ++i) trainer.warm_up(batches);
  trainer.world().barrier();
  log_.run_start();
  log_.block_start(0, interval_ * batch_ * (skipped_ + 1));
}

void MlperfRun::evaluation_ends(std::optional<double> loss) {
  if (loss) log_.eval_accuracy(samples(), *loss);
  log_.eval_stop(samples());
  reached_ = loss && *loss <= benchmark_.target;
  if (loss && !reached_) log_.block_start(samples(), interval_ * batch_);
}

std::string MlperfRun::stop(const std::string& why) {
  if (!trainer_ || std::exchange(stopped_, true)) return "";
  log_.run_stop(samples(), reached_ ? "" : why);
  if (lost_)
    throw IoError(fmt::format("{}: lines of the log are missing, so the run does not count", log_file(config_)));
  return fmt::format("{}: after {} samples the target of {} is {}; {}", word_of(mlperf_of(config_).benchmark),
                     samples(), benchmark_.target, reached_ ? "reached" : "not reached: " + why, log_file(config_));
}

}  // namespace trivet
