#include "engine/train/run.h"

#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <optional>
#include <ostream>
#include <type_traits>
#include <unistd.h>

#include "engine/config/explain.h"
#include "engine/config/validate.h"
#include "engine/data/sentencepiece_tokenizer.h"
#include "engine/data/statistics.h"
#include "engine/data/tokenizer.h"
#include "engine/data/training_data.h"
#include "engine/fault/run_guard.h"
#include "engine/metrics/accounting.h"
#include "engine/metrics/console.h"
#include "engine/metrics/jsonl.h"
#include "engine/metrics/peak_flops.h"
#include "engine/metrics/perfetto.h"
#include "engine/metrics/step_stats.h"
#include "engine/metrics/straggler.h"
#include "engine/metrics/time_table.h"
#include "engine/train/checkpointing.h"
#include "engine/train/generate.h"
#include "engine/train/trainer.h"
#include "kernels/cpu/gemm_peak.h"

namespace trivet {
namespace {

struct Peak {
  double tflops = 0;  // of one rank
  std::string origin;
};

// Every rank measures at the same time, as they will compute at the same time; the mean is one rank's share.
Peak find_peak(const Config& config, Trainer& trainer) {
  if (config.device.peak_tflops) return {*config.device.peak_tflops, "device.peak_tflops"};
  if (trainer.device().kind() == DeviceKind::cuda) {
    if (const auto known = peak_tflops_by_name(trainer.device().name(), config.precision.dtype))
      return {*known, "data sheet of " + trainer.device().name() + ", dense " + config.precision.dtype};
    return {StepReport::kUnknown, "unknown GPU: set device.peak_tflops"};
  }
  trainer.world().barrier();
  float sum = static_cast<float>(measure_gemm_peak_tflops(trainer.device(), trainer.ops(), dtype_of(config.precision)));
  trainer.world().all_reduce({&sum, DType::f32, {1}}, Reduce::sum, trainer.context().compute);
  return {sum / static_cast<float>(trainer.world().size()),
          fmt::format("matrix products in {} measured on all ranks at once", config.precision.dtype)};
}

// Adds up what the ranks did in a step and have to say: it all travels in one all-reduce.
StepSums sum_over_ranks(Trainer& trainer, const StepSums& mine) {
  StepSums sum = mine;
  static_assert(std::is_trivially_copyable_v<StepSums> && sizeof sum % sizeof(int64_t) == 0);
  trainer.world().all_reduce({&sum, DType::i64, {sizeof sum / sizeof(int64_t)}}, Reduce::sum,
                             trainer.context().compute);
  return sum;
}

// What the arenas of each pipeline rank hold, on every rank; tensor- and data-parallel peers hold as much.
std::vector<MemoryPlan> gather_memory(Trainer& trainer) {
  const MemoryPlan mine = trainer.state().memory();
  std::vector<int64_t> bytes;
  for (const MemoryItem& item : mine.items) bytes.push_back(item.bytes);
  const int p = trainer.mesh().shape.p;
  const auto items = static_cast<int64_t>(bytes.size());
  std::vector<int64_t> all(bytes.size() * static_cast<size_t>(p));
  trainer.mesh().pipeline->all_gather({bytes.data(), DType::i64, {items}}, {all.data(), DType::i64, {p, items}},
                                      trainer.context().compute);
  std::vector<MemoryPlan> plans(static_cast<size_t>(p), mine);
  for (size_t i = 0; i < all.size(); ++i) plans[i / bytes.size()].items[i % bytes.size()].bytes = all[i];
  return plans;
}

std::string rank_name(const Trainer& trainer, int rank) {
  const MeshPosition at = position_of(rank, trainer.mesh().shape);
  return fmt::format("rank {} (tp {}, pp {}, dp {})", rank, at.tp, at.pp, at.dp);
}

std::vector<RankTime> gather_times(Trainer& trainer, StepStats mine) {
  const int ranks = trainer.world().size();
  constexpr int64_t kNumbers = sizeof mine / sizeof(int64_t);
  std::vector<StepStats> all(static_cast<size_t>(ranks));
  trainer.world().all_gather({&mine, DType::i64, {kNumbers}}, {all.data(), DType::i64, {ranks, kNumbers}},
                             trainer.context().compute);
  std::vector<RankTime> times;
  for (int rank = 0; rank < ranks; ++rank) times.push_back({rank_name(trainer, rank), all[static_cast<size_t>(rank)]});
  return times;
}

// What rank 0 tells, and every rank's part of the trace. Ranks other than 0 have neither console nor log.
class Reporter {
 public:
  Reporter(const LoadedConfig& loaded, const Layout& layout, Trainer& trainer, std::ostream& out)
      : config_(loaded.config), trainer_(trainer), time_(trainer.world().size()) {
    const bool first = trainer.world().rank() == 0;
    const Peak peak = find_peak(config_, trainer);
    work_ = {.samples = config_.batch.global_batch_size.value(),
             .tokens = config_.batch.global_batch_size.value() * config_.model.seq_length,
             .flops = flops_per_step(config_.model, config_.model.vocab_size.value(),
                                     config_.batch.global_batch_size.value(),
                                     parse_flops_convention(config_.train.flops_convention)),
             .ranks = trainer.world().size(),
             .peak_tflops = peak.tflops};
    const std::vector<MemoryPlan> memory = gather_memory(trainer);
    if (first) {
      console_.emplace(out, [] { return terminal_columns(STDOUT_FILENO); });
      std::vector<TextBlock> blocks = describe_run(config_, layout, memory);
      blocks.push_back({.title = "speed",
                        .rows = {{"device", trainer.device().name()},
                                 {"threads a rank", std::to_string(trainer.threads())},
                                 {"peak a rank", fmt::format("{:.3f} TFLOP/s: {}", peak.tflops, peak.origin)},
                                 {"model FLOPs", fmt::format("{} convention, {:.4g} a step",
                                                             config_.train.flops_convention, work_.flops)}}});
      console_->banner(blocks);
      log_.emplace(config_.train.run_dir + "/metrics.jsonl", [this](const std::string& why) { console_->note(why); });
    }
    if (config_.train.trace) open_trace();
    discard_spans();
  }

  // Returns the sums of the ranks' votes.
  Votes step(const StepResult& result, const Votes& votes) {
    collect_spans();
    if (trace_) trace_->step(result.step, spans_);
    const StepStats mine = meter_.measure(spans_, result.start_ns, result.end_ns);
    const auto [stats, sum] = sum_over_ranks(trainer_, {mine, votes});
    const double seconds = static_cast<double>(result.end_ns - result.start_ns) * 1e-9;
    speed_.add(seconds);
    time_.add(stats, mine);
    look_for_stragglers(result.step, mine);
    if (!console_) return sum;
    if (!result.warning.empty()) note(result.warning);
    StepReport report;
    report.step = result.step;
    report.total_steps = config_.train.train_iters;
    report.consumed_samples = trainer_.consumed_samples();
    report.consumed_tokens = trainer_.consumed_samples() * config_.model.seq_length;
    report.loss = result.loss;
    report.grad_norm = result.grad_norm;
    report.learning_rate = result.learning_rate;
    report_speed(report, work_, seconds, stats);
    if (trainer_.mesh().shape.p == 1) report.bubble_fraction = 0;  // idle time there is not the pipeline's
    log_->step(report);
    if (result.step % config_.train.log_interval == 0 || result.step == config_.train.train_iters)
      console_->step(report);
    console_->progress(result.step, config_.train.train_iters, speed_.recent_step_seconds());
    return sum;
  }

  void evaluation(int64_t step, double loss, double seconds) {
    discard_spans();
    if (!console_) return;
    const EvalReport report{.step = step,
                            .validation_loss = loss,
                            .samples = config_.train.eval_iters * config_.batch.global_batch_size.value(),
                            .seconds = seconds};
    log_->eval(report);
    console_->eval(report);
  }

  void note(const std::string& line) {
    if (console_) console_->note(line);
  }

  CheckpointNews news() {
    if (!console_) return {};
    return {
        .note = [this](const std::string& line) { note(line); },
        .resumed =
            [this](int64_t step, const std::string& checkpoint) {
              console_->note(
                  fmt::format("resumed from {} after step {} of {}", checkpoint, step, config_.train.train_iters));
              log_->resume(step, checkpoint);
            },
        .saved =
            [this](const SaveReport& report) {
              console_->note(fmt::format("saved step {}: {} in {:.2f} s, of which training waited {:.3f} s",
                                         report.step, bytes_text(report.bytes), report.seconds, report.stall_seconds));
              log_->save(report);
            }};
  }

  // Collective: gathers the ranks' times and joins their traces.
  void finish() {
    const std::vector<RankTime> times = gather_times(trainer_, time_.own());
    if (console_) console_->banner(time_.describe(times));
    if (!trace_) return;
    trace_->close();
    trainer_.world().barrier();
    if (!console_) return;
    std::vector<std::string> parts;
    for (int rank = 0; rank < trainer_.world().size(); ++rank) parts.push_back(trace_part(rank));
    join_traces(parts, config_.train.run_dir + "/trace.json");
    for (const std::string& part : parts) std::filesystem::remove(part);
  }

 private:
  std::string trace_part(int rank) const { return fmt::format("{}/trace.rank{}.json", config_.train.run_dir, rank); }

  void open_trace() {
    std::vector<std::string> rows;
    for (TraceRow& row : trainer_.trace().rows()) rows.push_back(row.name());
    // One origin for all ranks: rank 0's clock. Ranks of other hosts have clocks of their own.
    int64_t origin = now_ns();
    trainer_.world().broadcast({&origin, DType::i64, {1}}, 0, trainer_.context().compute);
    const int rank = trainer_.world().rank();
    trace_.emplace(trace_part(rank), rank, rank_name(trainer_, rank), rows, origin,
                   [](const std::string& why) { fmt::print(stderr, "trivet: {}\n", why); });
  }
  void look_for_stragglers(int64_t step, const StepStats& stats) {
    const int64_t interval = config_.train.straggler_interval;
    if (config_.train.straggler_factor == 0) return;
    own_work_ += stats;
    if (step % interval != 0) return;
    constexpr auto kNumbers = static_cast<int64_t>(sizeof(OwnWork) / sizeof(int64_t));
    const int ranks = trainer_.world().size();
    std::vector<OwnWork> work(static_cast<size_t>(ranks), own_work_);
    if (ranks > 1)
      trainer_.world().all_gather({&own_work_, DType::i64, {kNumbers}}, {work.data(), DType::i64, {ranks * kNumbers}},
                                  trainer_.context().compute);
    own_work_ = {};
    if (!console_) return;
    std::vector<int> stages;
    for (int rank = 0; rank < ranks; ++rank) stages.push_back(position_of(rank, trainer_.mesh().shape).pp);
    for (const std::string& line : find_stragglers(work, stages, interval, config_.train.straggler_factor)) note(line);
  }
  void collect_spans() {
    spans_.resize(trainer_.trace().rows().size());
    size_t i = 0;
    for (TraceRow& row : trainer_.trace().rows()) row.take(spans_[i++]);
  }
  void discard_spans() { collect_spans(); }

  const Config& config_;
  Trainer& trainer_;
  StepWork work_;
  RunningSpeed speed_;
  TimeTable time_;
  StepMeter meter_;
  OwnWork own_work_;                      // since the last look
  std::vector<std::vector<Span>> spans_;  // [row]
  std::optional<Console> console_;
  std::optional<MetricsLog> log_;
  std::optional<PerfettoWriter> trace_;
};

void prepare_run_dir(const Config& config) {
  std::error_code error;
  std::filesystem::create_directories(config.train.run_dir, error);
  if (error) throw IoError(fmt::format("train.run_dir {}: {}", config.train.run_dir, error.message()));
  const std::string path = config.train.run_dir + "/config.resolved.yaml";
  std::ofstream file(path);
  file << to_yaml(config);
  if (!file.flush()) throw IoError(path + ": cannot be written");
}

void evaluate(const Config& config, Trainer& trainer, Reporter& reporter) {
  const int64_t begin = now_ns();
  const double loss = trainer.evaluate(config.train.eval_iters);
  reporter.evaluation(trainer.steps_done(), loss, static_cast<double>(now_ns() - begin) * 1e-9);
}

// What a model that knows only how often each token occurs would lose on the validation set: the first thing to beat.
void note_unigram_entropy(const DataConfig& data, Reporter& reporter) {
  const IndexedDataset dataset(data.path.empty() ? data.valid_path : data.path);
  const DocumentRange documents =
      data.path.empty() ? DocumentRange{0, dataset.sequences()} : split_documents(data.split, dataset.sequences())[1];
  const double entropy = unigram_entropy(dataset, documents);
  reporter.note(fmt::format("the validation set's unigram entropy is {:.4f} nats a token", entropy));
}

void write_sample(const Config& config, const RunOptions& options, Trainer& trainer, Reporter& reporter) {
  const auto tokenizer = config.data.tokenizer_model.empty()
                             ? open_tokenizer(config.data.path.empty() ? config.data.train_path : config.data.path)
                             : load_sentencepiece(config.data.tokenizer_model);
  const Sampling sampling{.tokens = options.generate_tokens,
                          .temperature = options.temperature,
                          .top_k = options.top_k,
                          .seed = static_cast<uint64_t>(config.train.seed),
                          .stop_token = tokenizer->eod()};
  const std::vector<int32_t> prompt = tokenizer->encode(options.prompt);
  std::vector<int32_t> text = prompt;
  const std::vector<int32_t> more = generate(trainer, prompt, sampling);
  text.insert(text.end(), more.begin(), more.end());
  reporter.note("\n" + tokenizer->decode(text));
}

int train(const LoadedConfig& loaded, const Layout& layout, const RunOptions& options,
          const std::vector<std::string>& candidates, const TrainingData& data, RunGuard& guard, Communicator& world,
          std::ostream& out, int64_t start_ns) {
  const Config& config = loaded.config;
  if (world.rank() == 0) prepare_run_dir(config);
  world.barrier();

  Trainer trainer(config, layout, world, *data.train, data.valid.get(), false,
                  guard.faults().none() ? nullptr : &guard.faults());
  Reporter reporter(loaded, layout, trainer, out);
  if (!guard.lock_taken_from().empty()) reporter.note("the run folder's lock was left by " + guard.lock_taken_from());
  if (data.valid && world.rank() == 0) note_unigram_entropy(config.data, reporter);
  const auto vocabulary = data_vocabulary(config.data);
  Checkpointing checkpointing(config, layout, trainer, reporter.news(),
                              {.tokenizer = vocabulary ? vocabulary->fingerprint : "",
                               .stop_signal = options.stop_signal,
                               .disk_fault = options.disk_fault ? options.disk_fault : guard.faults().disk_fault(),
                               .hook = guard.faults().none() ? nullptr : &guard.faults()},
                              start_ns);
  checkpointing.resume(candidates, options.resume == "auto");
  guard.set_steps_done(trainer.steps_done());
  bool going_on = trainer.steps_done() < config.train.train_iters;
  while (going_on) {
    const StepResult result = trainer.step();
    const Votes votes = reporter.step(result, checkpointing.votes());
    guard.set_steps_done(trainer.steps_done());
    const int64_t interval = config.train.eval_interval;
    if (data.valid && (trainer.steps_done() % interval == 0 || trainer.steps_done() == config.train.train_iters))
      evaluate(config, trainer, reporter);
    going_on = checkpointing.after_step(votes);
  }
  if (checkpointing.exit_code() == 0 && !options.prompt.empty()) write_sample(config, options, trainer, reporter);
  reporter.finish();
  return checkpointing.exit_code();
}

}  // namespace

RunFacts facts_of(const Config& config, int world_size) {
  // Which paths are there and which are not is for resolve() to judge, with everything else.
  if (config.data.path.empty() == config.data.train_path.empty()) return {.world_size = world_size};
  const auto vocabulary = data_vocabulary(config.data);
  return {.world_size = world_size, .dataset_vocab_size = vocabulary ? std::optional(vocabulary->size) : std::nullopt};
}

int run_training(LoadedConfig loaded, const RunOptions& options, Communicator& world, std::ostream& out) {
  const int64_t start_ns = now_ns();
  const Layout layout = resolve(loaded, facts_of(loaded.config, world.size()));
  const Config& config = loaded.config;
  if (config.device.kind == "cuda")
    throw ConfigError(
        "device.kind: found cuda, but the operations of this build run on the CPU only; expected auto or "
        "cpu");
  const TrainingData data = open_training_data(config.data, config.model.seq_length, config.model.vocab_size.value(),
                                               config.train.eval_interval > 0);
  const std::vector<std::string> candidates = checkpoints_to_resume(options.resume, config);
  RunGuard guard(config, options.faults, world);
  return guard.run([&](Communicator& watched) {
    return train(loaded, layout, options, candidates, data, guard, watched, out, start_ns);
  });
}

}  // namespace trivet
