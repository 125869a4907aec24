// MLPerf benchmark runs: what the rules derive from a configuration, what the log says about the engine, and
// when. A scripted engine with its own clock and losses runs the real benchmarks; the linter reads their logs.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "parallel/comm/planning_comm.h"
#include "tests/engine/checkpoint/runs.h"
#include "tests/support/message_of.h"
#include "tests/support/where.h"
#include "tools/mlperf/lint.h"
#include "tools/mlperf/procedure.h"
#include "tools/mlperf/summary.h"

namespace trivet::test {
namespace {

LoadedConfig benchmark_config(const std::string& name, const std::vector<std::string>& sets = {}) {
  return load_config(source_path("configs/mlperf/" + name + ".yaml"), sets);
}

std::string value_of(const Config& config, std::string_view key) { return format_field(*find_field(key), config); }

// ---- the configuration

TEST(MlperfConfig, RulesGiveWhatItDoesNotSay) {
  struct Case {
    const char *name, *batch, *key, *value, *round = "";
  };
  const Case cases[] = {
      {"llama31_405b", "1152", "optimizer.lr", "8e-05"},
      {"llama31_405b", "2304", "optimizer.lr", "0.00016"},
      {"llama31_405b", "2304", "optimizer.lr_warmup_iters", "4000"},
      {"llama31_405b", "2304", "optimizer.lr_decay_iters", "600000"},
      {"llama31_405b", "2304", "optimizer.min_lr", "8e-07"},
      {"llama31_405b", "2016", "optimizer.lr_warmup_iters", "4572"},
      {"llama31_405b", "2016", "optimizer.lr_decay_iters", "685715"},  // 4,572 steps of warm-up, then 681,143
      {"llama31_405b", "3456", "optimizer.lr_decay_iters", "400000"},
      {"llama31_405b", "1008", "optimizer.lr_decay_iters", "1371429"},
      {"llama31_405b", "2304", "train.eval_interval", "8"},
      {"llama31_405b", "1728", "optimizer.lr", "0.00012"},
      {"llama31_405b", "1152", "train.eval_samples", "5760"},
      {"llama31_8b", "32", "optimizer.lr_decay_iters", "1200000"},
      {"llama31_8b", "32", "optimizer.min_lr", "8e-05"},
      {"llama31_8b", "32", "train.eval_interval", "384"},
      {"llama31_8b", "32", "optimizer.adam_eps", "1e-05"},
      {"llama31_405b", "1152", "optimizer.lr_decay_iters", "1200000", "5.0"},
      {"gpt3_175b", "1536", "optimizer.lr", "2e-05"},
      {"gpt3_175b", "1536", "optimizer.lr_warmup_iters", "265"},
      {"gpt3_175b", "1536", "optimizer.lr_decay_iters", "108600"},
      {"gpt3_175b", "4096", "optimizer.lr", "3e-05"},
      {"gpt3_175b", "1536", "train.full_validation", "true"},
  };
  std::string resolved;
  LoadedConfig loaded;
  for (const auto& [name, batch, key, value, round] : cases) {
    const std::string run = fmt::format("{} {} {}", name, batch, round);
    if (std::exchange(resolved, run) != run) {
      loaded = benchmark_config(name, {fmt::format("batch.global_batch_size={}", batch),
                                       fmt::format("mlperf.round={}", round), "mlperf.skipped_evaluations=0"});
      resolve(loaded, {.world_size = ranks_of_one_replica(loaded.config)});
    }
    EXPECT_EQ(value_of(loaded.config, key), value) << name << " with batches of " << batch << ": " << key;
  }
}

TEST(MlperfConfig, TheClosedDivisionForbidsWhatTheOpenOneNotes) {
  const std::vector<std::string> sets{"optimizer.lr=1e-4"};
  LoadedConfig closed = benchmark_config("llama31_405b", sets);
  const RunFacts facts{.world_size = 72};
  const std::string message = message_of([&] { resolve(closed, facts); });
  EXPECT_NE(message.find("optimizer.lr: 0.0001 is not allowed in the closed division of llama31_405b"), message.npos);
  EXPECT_NE(message.find("expected 8e-05"), message.npos);
  std::vector<std::string> others{"model.hidden_dropout=0.1",      "model.rotary_base=10000",
                                  "model.rotary_percent=0.5",      "model.rope_scaling_factor=16",
                                  "model.layernorm_epsilon=1e-6",  "model.init_method_std=0.03",
                                  "optimizer.lr_warmup_init=1e-6", "model.kv_channels=64"};
  // A key that the rules do not name, say one from a later version, must not be set.
  const LoadedConfig given = benchmark_config("llama31_8b");
  for (const Field& field : fields())
    if (field.section() == "model" && field.noun == "true or false")
      others.push_back(fmt::format("{}={}", field.name, format_field(field, given.config) == "false"));
  EXPECT_GE(others.size(), 15u);
  for (const std::string& set : others) {
    LoadedConfig other = benchmark_config("llama31_8b", {set});
    EXPECT_NE(message_of([&] { resolve(other, {.world_size = 4}); }).find(set.substr(0, set.find('=')) + ": "),
              message.npos)
        << set;
  }

  // Numerical formats are free.
  LoadedConfig fp8 = benchmark_config("llama31_8b", {"precision.fp8=hybrid"});
  EXPECT_NO_THROW(resolve(fp8, {.world_size = 4}));

  LoadedConfig open = benchmark_config("llama31_405b", {"optimizer.lr=1e-4", "mlperf.division=open"});
  const Layout layout = resolve(open, facts);
  EXPECT_EQ(open.config.optimizer.lr, 1e-4);
  EXPECT_TRUE(
      std::ranges::any_of(layout.notes, [](const std::string& note) { return note.starts_with("optimizer.lr is"); }));
}

TEST(MlperfConfig, NotesBatchesThatCannotBeSubmitted) {
  const auto notes = [](const char* batch, const char* text) {
    LoadedConfig loaded = benchmark_config(
        "llama31_405b", {fmt::format("batch.global_batch_size={}", batch), "mlperf.skipped_evaluations=0"});
    const Layout layout = resolve(loaded, {.world_size = 16});
    return std::ranges::any_of(layout.notes, [&](const std::string& note) { return note.find(text) != note.npos; });
  };
  EXPECT_FALSE(notes("1152", "reference points"));
  EXPECT_FALSE(notes("1152", "compares the learning rate"));
  EXPECT_TRUE(notes("576", "have no reference points"));
  EXPECT_TRUE(notes("1160", "compares the learning rate without tolerance"));
}

TEST(MlperfConfig, RefusesWhatIsMissingOrHasNoEffect) {
  const auto config = [](const char* name, const std::vector<std::string>& sets) {
    return message_of([&] {
      LoadedConfig loaded = benchmark_config(name, sets);
      resolve(loaded, {.world_size = ranks_of_one_replica(loaded.config), .dataset_vocab_size = 4096});
    });
  };
  EXPECT_NE(config("llama31_8b", {"mlperf.skipped_evaluations=1"}).find("is above what llama31_8b allows"),
            std::string::npos);
  EXPECT_NE(config("gpt3_175b", {"train.eval_samples=100"}).find("train.eval_samples: 100 is not allowed"),
            std::string::npos);
  EXPECT_NE(config("tiny", {"mlperf.skipped_evaluations=50"}).find("the first evaluation is after step 816"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              benchmark_config("tiny", {"data.path=x", "data.train_path=", "data.valid_path=", "data.split=100,0,0"});
            }).find("data.split: 100,0,0 leaves no validation data"),
            std::string::npos);
  EXPECT_NE(config("tiny", {"optimizer.decoupled_lr=1e-4"}).find("excludes mlperf.benchmark, whose log has one rate"),
            std::string::npos);
  const auto message = [](const std::vector<std::string>& sets) {
    return message_of([&] { benchmark_config("tiny", sets); });
  };
  EXPECT_NE(message({"mlperf.target=auto"}).find("mlperf.target: is required with benchmark tiny"), std::string::npos);
  EXPECT_NE(message({"mlperf.submission_org="}).find("mlperf.submission_org: is required"), std::string::npos);
  EXPECT_NE(message({"train.exit_duration_in_mins=5"}).find("excludes mlperf.benchmark"), std::string::npos);
  for (const char* round : {"4.1", "5.55"})
    EXPECT_NE(message_of([&] {
                benchmark_config("llama31_8b", {fmt::format("mlperf.round={}", round)});
              }).find(fmt::format("\"{}\" has no llama31_8b", round)),
              std::string::npos);
  EXPECT_NE(message({"mlperf.round=5.1"}).find("\"5.1\" has no tiny"), std::string::npos);
  EXPECT_NE(message_of([] {
              load_config(source_path("configs/tiny.yaml"), std::vector<std::string>{"mlperf.target=3"});
            }).find("mlperf.target"),
            std::string::npos);
}

// ---- the log of a scripted engine

struct Scripted {
  const char *name, *round, *batch;
  double last;  // loss that reaches the target
  int evaluations;
  int64_t first_step;
  int seed = 7;
};

// Drives the log of a real benchmark as a run would. Each evaluation lowers the loss by 0.02; a sample takes 1 ms.
std::string scripted_log(const Scripted& run) {
  const std::string name = run.name;
  LoadedConfig loaded = benchmark_config(
      name, {fmt::format("batch.global_batch_size={}", run.batch), fmt::format("mlperf.round={}", run.round),
             "mlperf.submission_org=An organisation", "mlperf.skipped_evaluations=0",
             fmt::format("train.seed={}", run.seed), fmt::format("data.seed={}", run.seed)});
  const int ranks = ranks_of_one_replica(loaded.config);
  const Layout layout = resolve(loaded, {.world_size = ranks});
  Backend backend;
  backend.device = create_planning_device();
  backend.ops = create_cpu_ops(1);
  const auto world = create_planning_communicator(*backend.device, 0, ranks);
  const Rank rank(loaded.config, layout, std::move(backend), *world, {});

  std::string text;
  int64_t now = 1'700'000'000'000;
  const auto benchmark = *benchmark_of(mlperf_of(loaded.config));
  mlperf::RunLog log(
      benchmark, [&](const std::string& line) { text += line; }, [&] { return now; });
  log.start({{"submission_org", mlperf_of(loaded.config).submission_org},
             {"submission_division", "closed"},
             {"submission_status", "onprem"},
             {"submission_platform", "H100"}},
            true);
  mlperf::Description described = description_of(rank, loaded.config, benchmark, run.first_step);
  described["eval_samples"] = benchmark.counts_tokens ? 11'590'004 : loaded.config.train.eval_samples;
  if (!benchmark.counts_tokens) described["train_samples"] = 1'574'207'408;
  described["config_filename"] = name;
  log.describe(described);
  now += 60'000;
  log.run_start();
  const int64_t interval = loaded.config.train.eval_interval * described["global_batch_size"].get<int64_t>();
  int64_t samples = 0;
  for (int left = run.evaluations - 1; left >= 0; --left) {
    log.block_start(samples, interval);
    samples += interval, now += interval;
    log.eval_start(samples);
    now += 1000;
    log.eval_accuracy(samples, run.last + 0.02 * left + 1e-5 * run.seed);
    log.eval_stop(samples);
  }
  log.run_stop(samples, "");
  return text;
}

const Scripted kScripted[] = {
    {"gpt3_175b", "4.1", "1536", 2.68, 25, 4000}, {"llama31_8b", "5.1", "32", 3.29, 15, 0},
    {"llama31_8b", "6.0", "64", 3.29, 19, 0},     {"llama31_8b", "6.1", "16", 3.29, 13, 0},
    {"llama31_405b", "5.0", "1152", 5.59, 7, 0},  {"llama31_405b", "5.1", "2304", 5.59, 20, 0},
    {"llama31_405b", "6.0", "4608", 5.59, 27, 0},
};

void expect_no_findings(const mlperf::Lint& lint) {
  for (const mlperf::Finding& finding : lint.findings)
    EXPECT_EQ(finding.level, mlperf::Level::cannot_know) << finding.message;
}

// TRIVET_MLPERF_LOGS: a folder to write the logs to, for tests/mlperf/check.sh.
TEST(MlperfLog, OfRealBenchmarksHasNoFindings) {
  for (const Scripted& run : kScripted) {
    SCOPED_TRACE(fmt::format("{} {}", run.name, run.round));
    const TempDir dir;
    const std::string text = scripted_log(run);
    write_text(dir / "result_0.txt", text);
    expect_no_findings(mlperf::lint({dir / "result_0.txt"}, run.round));
    if (const char* folder = std::getenv("TRIVET_MLPERF_LOGS"))
      write_text(fmt::format("{}/{}-{}-run.txt", folder, run.name, run.round), text);
  }
}

// Like the reference's runs with 16 samples per step, which reach the target at their 13th or 14th evaluation.
TEST(MlperfLog, OfAResultHasNoFindings) {
  const TempDir dir;
  const char* given = std::getenv("TRIVET_MLPERF_PACKAGE");
  const std::string folder = given ? given : dir / ".";
  for (int i = 0; i < 10; ++i)
    write_text(fmt::format("{}/result_{}.txt", folder, i),
               scripted_log({"llama31_8b", "6.1", "16", 3.29, 13 + i % 2, 0, 100 + i}));
  const mlperf::Lint lint = mlperf::lint({folder}, "6.1");
  EXPECT_EQ(lint.count(mlperf::Level::error), 0);
  expect_no_findings(lint);
}

// The log follows the engine, not the file: an engine that differs from the file is logged as it is.
TEST(MlperfLog, FollowsTheEngine) {
  Config config = tiny_config();
  with_trainers(config, 1, [&](Trainer& trainer) {
    Config changed = config;
    const mlperf::Benchmark benchmark{.constants = {{"opt_name", {"adamw"}}, {"init_checkpoint_step", {0}}}};
    const mlperf::Description before = description_of(trainer.rank(), config, benchmark, 0);
    EXPECT_EQ(before.at("global_batch_size"), 8);
    EXPECT_EQ(before.at("micro_batch_size"), 2);
    EXPECT_EQ(before.at("gradient_accumulation_steps"), 4);
    trainer.state().shape.micro_batch = 7;
    trainer.state().shape.dtype = DType::bf16;
    changed.optimizer.lr = 0.5;
    const mlperf::Description after = description_of(trainer.rank(), changed, benchmark, 3);
    trainer.state().shape.micro_batch = 2;
    trainer.state().shape.dtype = DType::f32;
    EXPECT_EQ(after.at("micro_batch_size"), 7);
    EXPECT_EQ(after.at("lowest_numerical_precision_in_linear"), "bfloat16");
    // Attention's core stays bf16; FP8 is sent if tensor ranks gather operands or data-parallel ranks gather weights.
    GptShape& shape = trainer.state().shape;
    bool& gathers_weights = trainer.state().flat.options.gathers_fp8;
    shape.dtype = DType::bf16, shape.fp8.format = Fp8::hybrid;
    for (const auto& [operands, weights] : {std::pair{false, false}, {true, false}, {false, true}}) {
      shape.sequence_parallel = operands, gathers_weights = weights;
      const mlperf::Description fp8 = description_of(trainer.rank(), changed, benchmark, 3);
      EXPECT_EQ(fp8.at("lowest_numerical_precision_in_linear"), "fp8");
      EXPECT_EQ(fp8.at("lowest_numerical_precision_in_attn"), "bfloat16");
      EXPECT_EQ(fp8.at("lowest_numerical_precision_in_comm"), operands || weights ? "fp8" : "bfloat16");
    }
    gathers_weights = false;
    shape.dtype = DType::f32, shape.fp8.format = Fp8::none, shape.sequence_parallel = false;
    EXPECT_EQ(after.at("opt_base_learning_rate"), 0.5);
    EXPECT_EQ(after.at("init_checkpoint_step"), 3);
  });
}

// ---- runs

Config tiny_benchmark(const std::string& run_dir, double target) {
  Config config = small_run(run_dir);
  config.checkpoint.save_interval = 0;
  config.train.eval_samples = 12;
  config.train.train_iters = 8;
  config.tools.of<MlperfConfig>().benchmark = MlperfBenchmark::tiny;
  config.tools.of<MlperfConfig>().submission_org = "TEST-NOT-A-RESULT";
  config.tools.of<MlperfConfig>().submission_platform = "a test";
  config.tools.of<MlperfConfig>().target = target;
  config.tools.of<MlperfConfig>().eval_interval_samples = 15;  // two steps of eight samples
  return config;
}

std::vector<std::string> keys_of(const mlperf::Log& log, std::string_view from) {
  std::map<int64_t, std::string> by_line;
  for (const auto& [key, records] : log.records)
    for (const mlperf::Record& record : records) by_line[record.line] = key;
  std::vector<std::string> keys;
  for (const auto& [line, key] : by_line) keys.push_back(key);
  keys.erase(keys.begin(), std::ranges::find(keys, from));
  return keys;
}

TEST(MlperfRun, EndsAtTheFirstEvaluationOnTarget) {
  const TempDir dir;
  const Config config = tiny_benchmark(dir / "run", 100);
  EXPECT_EQ(run(config, 1).exit_code, 0);
  const mlperf::Log log = mlperf::read_log(dir / "run/mlperf.log");
  EXPECT_EQ(keys_of(log, "init_stop"),
            (std::vector<std::string>{"init_stop", "run_start", "block_start", "block_stop", "eval_start",
                                      "eval_accuracy", "eval_stop", "run_stop"}));
  EXPECT_EQ(log.first("eval_accuracy")->metadata["samples_count"], 16);
  EXPECT_EQ(log.first("run_stop")->metadata["status"], "success");
  EXPECT_EQ(log.first("eval_samples")->value, 12);
  EXPECT_EQ(log.first("opt_adamw_beta_1")->value, config.optimizer.adam_beta1);
  expect_each_step_once(dir / "run", 2);
  EXPECT_EQ(records_of(dir / "run").back()["validation_loss"], log.first("eval_accuracy")->value);
}

TEST(MlperfRun, ThatMissesItsTargetIsAborted) {
  const TempDir dir;
  Config config = tiny_benchmark(dir / "run", 1e-3);
  config.tools.of<MlperfConfig>().skipped_evaluations = 1;
  EXPECT_EQ(run(config, 1).exit_code, 0);
  const mlperf::Log log = mlperf::read_log(dir / "run/mlperf.log");
  std::vector<int64_t> positions;
  for (const mlperf::Record& record : log.all("eval_accuracy")) positions.push_back(record.metadata["samples_count"]);
  EXPECT_EQ(positions, (std::vector<int64_t>{32, 48, 64}));
  EXPECT_EQ(log.first("run_stop")->metadata["status"], "aborted");
  std::vector<int64_t> blocks;
  for (const mlperf::Record& record : log.all("block_start")) blocks.push_back(record.metadata["samples_count"]);
  EXPECT_EQ(blocks[0], 32) << "up to the first evaluation";
  EXPECT_EQ(blocks[1], 16);
  // its folder already exists
  const std::string message = message_of([&] { run(config, 1); });
  EXPECT_NE(message.find("is the log of another run"), message.npos) << message;
}

// The checkpoint's samples count as steps of the run's batches, rounded up; positions continue from there, in tokens.
TEST(MlperfRun, StartsFromACheckpoint) {
  const TempDir dir;
  Config before = small_run(dir / "before");
  before.train.train_iters = 5;
  before.checkpoint.save_interval = 5;
  run(before, 1);
  Config config = tiny_benchmark(dir / "run", 100);
  config.tools.of<MlperfConfig>().benchmark = MlperfBenchmark::tiny_gpt3;
  config.tools.of<MlperfConfig>().eval_interval_samples = 32;
  config.batch.global_batch_size = 16;
  EXPECT_NE(message_of([&] { run(config, 1); }).find("starts from a checkpoint"), std::string::npos);
  RunOptions options;
  options.resume = dir / "before/checkpoints/step-00000005";
  EXPECT_EQ(run(config, 1, options).exit_code, 0);
  const mlperf::Log log = mlperf::read_log(dir / "run/mlperf.log");
  EXPECT_EQ(log.first("init_checkpoint_step")->value, 3);  // 40 samples in batches of 16
  EXPECT_EQ(log.first("eval_accuracy")->metadata["epoch_num"], 32 * config.model.seq_length);
  EXPECT_EQ(records_of(dir / "run").back()["step"], 5);
  config.train.run_dir = dir / "before";
  EXPECT_NE(message_of([&] { run(config, 1, options); }).find("has the checkpoints of another run"), std::string::npos);
  config.tools.of<MlperfConfig>().benchmark = MlperfBenchmark::tiny;
  config.train.run_dir = dir / "random";
  EXPECT_NE(message_of([&] { run(config, 1, options); }).find("starts from random weights"), std::string::npos);
}

// Warming up changes no number, on any layout.
TEST(MlperfRun, WarmingUpChangesNothing) {
  const Cut layouts[] = {{}, {.t = 2, .p = 2, .d = 2, .strategy = "optim"}, {.d = 2, .strategy = "optim_grads_params"}};
  for (const Cut& how : layouts) {
    const TempDir dir;
    Config config = cut(tiny_benchmark(dir / "cold", 1e-3), how);
    const RunResult cold = run(config, how.ranks());
    config.tools.of<MlperfConfig>().warmup_steps = 2;
    config.train.run_dir = dir / "warm";
    const RunResult warm = run(config, how.ranks());
    EXPECT_EQ(cold.losses, warm.losses);
    EXPECT_EQ(cold.evaluations, warm.evaluations);
  }
}

// The time of the first access to a file.
class AccessWatch {
 public:
  explicit AccessWatch(const std::string& path) : fd_(inotify_init1(IN_CLOEXEC)) {
    inotify_add_watch(fd_, path.c_str(), IN_ACCESS);
    thread_ = std::thread([this] {
      alignas(inotify_event) char event[4096];
      if (read(fd_, event, sizeof event) > 0)
        first_ms_ =
            std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
                .count();
    });
  }
  double first_ms() {
    thread_.join();
    close(fd_);
    return static_cast<double>(first_ms_.load());
  }

 private:
  const int fd_;
  std::atomic<int64_t> first_ms_ = 0;
  std::thread thread_;
};

TEST(MlperfRun, ReadsNoTokensBeforeTheClockStarts) {
  const TempDir dir;
  Config config = tiny_benchmark(dir / "run", 100);
  config.tools.of<MlperfConfig>().warmup_steps = 1;
  config.tools.of<MlperfConfig>().cache_clear =
      "sleep 0.05";  // so that a read before the cache was cleared would be much earlier
  AccessWatch tokens(config.data.path + ".bin");
  run(config, 1);
  const double first = tokens.first_ms();
  const mlperf::Log log = mlperf::read_log(dir / "run/mlperf.log");
  EXPECT_GE(first, log.first("run_start")->time_ms);
  EXPECT_EQ(log.first("cache_clear")->value, true);
}

TEST(MlperfRun, ClearsTheCachesOfEachHostOnce) {
  const TempDir dir;
  // The ranks of two hosts, as hosts in blocks and by turns; the command fails on none, or on the second host.
  for (const std::vector<int64_t>& boots : {std::vector<int64_t>{7, 7, 9, 9}, {7, 9, 7, 9}})
    for (const bool fails : {false, true}) {
      const std::string file = dir / "calls";
      write_text(file, "");
      std::atomic<int> cleared = 0;
      run_thread_ranks(4, [&](Communicator& world) {
        HostWorld host(world);
        const int64_t boot = boots[static_cast<size_t>(world.rank())];
        const std::string end = fails && boot == 9 ? "exit 1" : "true";
        cleared += clear_caches("echo " + std::to_string(boot) + " >>" + file + "; " + end, host, boot);
      });
      const std::string calls = read_text(file);
      EXPECT_TRUE(calls == "7\n9\n" || calls == "9\n7\n") << calls;
      EXPECT_EQ(cleared, fails ? 0 : 4) << "all ranks say the same";
    }
}

TEST(MlperfRun, ThatFailsSaysWhy) {
  const TempDir dir;
  Config config = tiny_benchmark(dir / "run", 1e-3);
  config.tools.of<MlperfConfig>().cache_clear = "false";
  RunOptions options;
  options.faults = parse_faults(std::vector<std::string>{"nan:0:3"});
  EXPECT_THROW(run(config, 1, options), NumericsError);
  const mlperf::Log log = mlperf::read_log(dir / "run/mlperf.log");
  EXPECT_EQ(log.first("cache_clear")->value, false);
  EXPECT_EQ(log.first("run_stop")->metadata["status"], "aborted");
  EXPECT_NE(log.first("run_stop")->metadata["reason"].get<std::string>().find("step 3"), std::string::npos);
}

// ---- the summary

mlperf::RunResult result(double minutes, double samples, const char* status = "success") {
  return {.file = "result_0.txt",
          .benchmark = "tiny",
          .batch = 8,
          .status = status,
          .minutes = minutes,
          .target = 3.5,
          .evaluations = {{samples, 3.0}}};
}

TEST(MlperfSummary, DropsTheFastestAndTheSlowest) {
  using mlperf::score_of;
  const std::vector runs{result(1, 10), result(2, 10), result(4, 10), result(9, 10)};
  EXPECT_EQ(score_of(runs), 3);
  EXPECT_EQ(score_of(std::vector{result(1, 10), result(2, 10)}), std::nullopt);
  EXPECT_EQ(score_of(std::vector{result(1, 10), result(2, 10), result(0.1, 10, "aborted")}), 2);
  EXPECT_EQ(score_of(std::vector{result(1, 10), result(2, 10, "aborted"), result(0.1, 10, "aborted")}), std::nullopt);
}

TEST(MlperfSummary, TestsAgainstAReference) {
  const mlperf::Reference reference{"tiny", 8, 3.5, {100, 110, 120, 110, 100, 110}};
  const auto verdict = [&](double samples) {
    const std::vector runs{result(1, samples), result(1, samples), result(1, samples)};
    return mlperf::summary_blocks(runs, reference).back().rows.back()[1];
  };
  EXPECT_EQ(verdict(110), "as the reference");
  EXPECT_EQ(verdict(60), "faster than the reference: not accepted");
  EXPECT_EQ(verdict(160), "slower than the reference");
}

// As in rcp_checker, a run that missed the target counts as the one with the most samples, and is dropped as the worst.
TEST(MlperfSummary, ARunThatMissedTheTargetIsDroppedAsTheWorst) {
  std::vector<mlperf::RunResult> runs(8, result(1, 14 * 12288));
  runs.push_back(result(1, 18 * 12288));
  runs.push_back(result(1, 1, "aborted"));
  for (mlperf::RunResult& run : runs) run.benchmark = "llama31_8b", run.batch = 32;
  const auto blocks = mlperf::summary_blocks(runs, {});
  EXPECT_EQ(blocks[1].rows.back()[0], "normalized");  // 178,176 samples
  EXPECT_THROW(mlperf::reference_text(runs), ConfigError);
}

// Each number on the page, computed by hand from the logs.
TEST(MlperfSummary, HasTheNumbersOfItsLogs) {
  const TempDir dir;
  const double minutes[] = {31.5, 40, 30, 33, 36, 32.25, 90, 35, 34, 33.75};
  const int64_t samples[] = {14, 15, 14, 15, 14, 14, 13, 15, 14, 14};  // in units of 12,288
  std::vector<mlperf::RunResult> runs;
  for (int i = 0; i < 10; ++i) {
    const auto start = int64_t{1'700'000'000'000} + 1000 * i;
    std::string text;
    const auto add = [&](int64_t ms, const char* key, const std::string& value, const std::string& metadata) {
      text += fmt::format(":::MLLOG {{\"time_ms\": {}, \"key\": \"{}\", \"value\": {}, \"metadata\": {{{}}}}}\n", ms,
                          key, value, metadata);
    };
    add(start - 90'000, "submission_benchmark", "\"llama31_8b\"", "");
    add(start - 90'000, "seed", fmt::to_string(100 + i), "");
    add(start - 90'000, "global_batch_size", "32", "");
    add(start - 90'000, "max_sequence_length", "8192", "");
    add(start, "run_start", "null", "");
    for (int64_t n = samples[i] - 1; n <= samples[i]; ++n)
      add(start + n, "eval_accuracy", n < samples[i] ? "3.5" : "3.25",
          fmt::format("\"samples_count\": {}", 12'288 * n));
    add(start + std::llround(minutes[i] * 60'000), "run_stop", "null", "\"status\": \"success\"");
    write_text(dir / fmt::format("result_{}.txt", i), text);
    runs.push_back(mlperf::result_of(mlperf::read_log(dir / fmt::format("result_{}.txt", i))));
  }
  const auto blocks = mlperf::summary_blocks(runs, {});
  EXPECT_EQ(blocks[0].title, "llama31_8b, batches of 32");
  for (size_t i = 0; i < 10; ++i)
    EXPECT_EQ(blocks[0].rows[i + 1],
              (std::vector<std::string>{fmt::format("result_{}.txt", i), fmt::to_string(100 + i),
                                        fmt::format("{:.3f}", minutes[i]), fmt::to_string(12'288 * samples[i]),
                                        "3.25000", "success"}));
  // Drops the times of 30 and 90 minutes, and, in units of 12,288 samples, 13 and one of the 15s. The reference's runs
  // (RCPs in mlperf_logging) need more: nine need 14, ten 15 and one 16; of these, one 14 and the 16 are dropped.
  const double score = (31.5 + 40 + 33 + 36 + 32.25 + 35 + 34 + 33.75) / 8;
  const double mean = 12'288 * (6 * 14 + 2 * 15) / 8., reference = 12'288 * (8 * 14 + 10 * 15) / 18.;
  EXPECT_EQ(blocks[1].rows,
            (std::vector<std::vector<std::string>>{
                {"score", fmt::format("{:.3f} minutes, the mean without the fastest and the slowest run", score)},
                {"normalized", fmt::format("{:.3f} minutes, as the reference takes {:.4f} times the samples",
                                           score * reference / mean, reference / mean)}}));
}

// The accepted range, by hand: the reference's mean without best and worst is 107.5, its population standard deviation
// 6.8718, and scipy.stats.t.ppf(0.95, 5) 2.01505, because four reference runs and three of these count: 107.5 ± 10.576.
TEST(MlperfSummary, AcceptsTheRangeOfTheTTests) {
  const mlperf::Reference reference{"tiny", 8, 3.5, {100, 110, 120, 110, 100, 110}};
  std::vector<mlperf::RunResult> runs(5, result(1, 107));
  runs[0] = result(1, 80), runs[1] = result(1, 113), runs[2] = result(1, 108);
  const auto rows = mlperf::summary_blocks(runs, reference).back().rows;
  EXPECT_EQ(rows[0][1], "108 samples to the target, mean of 6 runs without best and worst");
  EXPECT_EQ(rows[1][1], "107");
  EXPECT_EQ(rows[2][1].substr(0, 10), "97 to 118 ") << rows[2][1];
}

TEST(MlperfSummary, SaysWhereTwoRunsHaveOneSeed) {
  std::vector<mlperf::RunResult> runs(3, result(1, 10));
  const auto says_it = [&] {
    const auto rows = mlperf::summary_blocks(runs, {})[1].rows;
    return std::ranges::any_of(rows, [](const auto& row) { return row[0] == "seeds"; });
  };
  EXPECT_FALSE(says_it());  // no seed is known
  for (size_t i = 0; i < 3; ++i) runs[i].seed = static_cast<int64_t>(i);
  EXPECT_FALSE(says_it());
  runs[2].seed = 0;
  EXPECT_TRUE(says_it());
}

// A run may end before its first evaluation, but not if its log says that it reached the target.
TEST(MlperfSummary, TakesARunWithoutEvaluations) {
  const TempDir dir;
  const auto read = [&](const char* status) {
    std::string text;
    for (const std::string& line :
         {std::string(R"("key": "run_start", "value": null, "metadata": {})"),
          fmt::format(R"("key": "run_stop", "value": null, "metadata": {{"status": "{}"}})", status)})
      text += fmt::format(":::MLLOG {{\"time_ms\": 1700000000000, {}}}\n", line);
    write_text(dir / "result_0.txt", text);
    return mlperf::result_of(mlperf::read_log(dir / "result_0.txt"));
  };
  const std::vector runs{read("aborted")};
  EXPECT_EQ(mlperf::summary_blocks(runs, {})[0].rows[1][4], "-");
  EXPECT_NE(mlperf::plot_evaluations(runs).find("<svg"), std::string::npos);
  EXPECT_THROW(read("success"), DataError);
}

TEST(MlperfSummary, RefusesAReferenceOfAnotherForm) {
  const TempDir dir;
  for (const char* text :
       {"[]", "{\"benchmark\": \"tiny\"}", "{\"benchmark\": \"tiny\", \"batch\": 8, \"samples\": [1, 2]}",
        "{\"benchmark\": \"tiny\", \"batch\": 8, \"samples\": [1, 2, 3]}",
        "{\"benchmark\": \"tiny\", \"batch\": 8, \"target\": 3, \"samples\": [1, 2, -3]}"}) {
    write_text(dir / "reference.json", text);
    EXPECT_NE(message_of<DataError>([&] { mlperf::read_reference(dir / "reference.json"); }).find("expected"),
              std::string::npos);
  }
}

// The reference's runs at this batch size take about 15 evaluations of 1,024 samples, one every 384 steps.
TEST(MlperfTime, ToTheTargetIsStepsAndEvaluations) {
  LoadedConfig run = benchmark_config("llama31_8b");
  const auto to = time_to_target(run.config, 60);
  ASSERT_TRUE(to);
  EXPECT_NEAR(to->evaluations, 14.6, 0.2);
  EXPECT_NEAR(to->steps, 384 * to->evaluations, 1e-6);
  EXPECT_NEAR(to->minutes, to->steps + to->evaluations * 1024 / 32 / 3, 1e-6);
  run.config.tools.of<MlperfConfig>().skipped_evaluations = 3;
  EXPECT_NEAR(time_to_target(run.config, 60)->evaluations, to->evaluations - 3, 1e-6);
  EXPECT_FALSE(time_to_target(Config(), 60));
}

}  // namespace
}  // namespace trivet::test
