// Rows of metrics.jsonl, recomputed from the configuration and the file alone.
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "engine/data/indexed_dataset.h"
#include "tests/engine/checkpoint/runs.h"

namespace trivet::test {
namespace {

// Multiply-adds per token in a GPT's forward pass, by hand: each GEMM weight once; scores and values causal.
double multiply_adds(const ModelConfig& m) {
  const auto h = static_cast<double>(m.hidden_size), layers = static_cast<double>(m.num_layers);
  const auto heads = static_cast<double>(m.num_attention_heads);
  const double width = m.kv_channels ? static_cast<double>(*m.kv_channels) * heads : h;
  const double f = m.ffn_hidden_size ? static_cast<double>(*m.ffn_hidden_size) : 4 * h;
  return layers * (4 * h * width + 2 * h * f + 2 * width * static_cast<double>(m.seq_length) / 2) +
         h * static_cast<double>(m.vocab_size.value());
}

// Linear warm-up to lr, then cosine decay to min_lr, by samples.
double rate_at(const OptimizerConfig& o, double samples, double warmup, double decay) {
  if (samples <= warmup) return o.lr * samples / warmup;
  const double part = std::min(1.0, (samples - warmup) / (decay - warmup));
  return *o.min_lr + (o.lr - *o.min_lr) * (1 + std::cos(M_PI * part)) / 2;
}

void expect_rows(const Config& config, int ranks) {
  constexpr double kPrecise = 1e-9;
  const double flops = 6 * multiply_adds(config.model);
  const std::vector<int64_t> ramp = *config.batch.rampup_batch_size;  // start, increment, samples
  const int64_t full = *config.batch.global_batch_size, increments = (full - ramp[0]) / ramp[1];
  int64_t consumed = 0, step = 0;
  for (const nlohmann::json& row : records_of(config.train.run_dir)) {
    if (!row.contains("loss")) continue;
    SCOPED_TRACE(row.dump());
    const auto number = [&](const char* key) { return row.at(key).get<double>(); };
    // Megatron's rule: the batch grows by one increment each time an equal share of the ramp's samples is consumed.
    const int64_t batch = std::min(full, ramp[0] + consumed / (ramp[2] / increments) * ramp[1]);
    consumed += batch;
    ++step;
    const double tokens = static_cast<double>(batch * config.model.seq_length), seconds = number("step_seconds");
    EXPECT_EQ(row.at("step"), step);
    EXPECT_EQ(row.at("batch_size"), batch);
    EXPECT_EQ(row.at("consumed_samples"), consumed);
    EXPECT_EQ(row.at("consumed_tokens"), consumed * config.model.seq_length);
    EXPECT_GT(seconds, 0);
    EXPECT_NEAR(number("tokens_per_second") * seconds / tokens, 1, kPrecise);
    EXPECT_NEAR(number("model_tflops_per_rank") * 1e12 * seconds * ranks / (flops * tokens), 1, kPrecise);
    EXPECT_NEAR(number("mfu") * *config.device.peak_tflops / number("model_tflops_per_rank"), 1, kPrecise);
    // A step's rate is that of the samples consumed at its end, as in Megatron's scheduler.
    EXPECT_NEAR(number("learning_rate") / rate_at(config.optimizer, static_cast<double>(consumed), 8, 36), 1, kPrecise);
    EXPECT_NEAR(number("compute_fraction") + number("optimizer_fraction") + number("exposed_fraction") +
                    number("wait_fraction") + number("host_fraction") + number("idle_fraction"),
                1, 1e-3);
    if (ranks == 1) {
      EXPECT_NEAR(number("compute_seconds") / seconds, number("compute_fraction"), 1e-3);
    }
  }
  EXPECT_EQ(consumed, 36);
}

Config ramped_run(const std::string& run_dir) {
  Config config = small_run(run_dir);
  config.model.kv_channels = 12;  // heads whose width is not hidden / heads
  config.train.train_iters = 0;
  config.train.train_samples = 36;
  config.optimizer.lr_warmup_iters = 0;
  config.optimizer.lr_decay_iters.reset();
  config.optimizer.lr_warmup_samples = 8;
  config.batch.rampup_batch_size = std::vector<int64_t>{4, 4, 12};
  config.device.peak_tflops = 1e3;
  return config;
}

TEST(MetricsRows, AreWhatTheConfigurationSays) {
  const TempDir dir;
  for (const Cut& how : {Cut{}, Cut{.p = 2}, Cut{.t = 2, .d = 2, .strategy = "optim"}}) {
    SCOPED_TRACE(how.ranks());
    const Config config = cut(ramped_run(dir / fmt::format("{}", how.ranks())), how);
    ASSERT_EQ(run(config, how.ranks()).exit_code, 0);
    expect_rows(config, how.ranks());
  }
}

TEST(MetricsRows, AreWhatTheConfigurationSaysAfterAResume) {
  const TempDir dir;
  const Config config = ramped_run(dir / "run");
  for (const int stop : {2, 3, 0}) {
    RunOptions options{.resume = "auto"};
    if (stop > 0) options.stop_signal = stop_after(stop);
    run(config, 1, options);
  }
  expect_rows(config, 1);
}

// A row for each pipeline rank, which is not the world rank of that number.
TEST(MetricsRows, TheBannerHasTheMemoryOfEachStage) {
  const TempDir dir;
  Config config = cut(small_run(dir / "run"), {.t = 2, .p = 2});
  config.train.train_iters = 1;
  ASSERT_EQ(run(config, 4).exit_code, 0);
  std::istringstream records(read_text(dir / "run/metrics.jsonl"));
  std::string line, banner;
  while (banner.empty() && std::getline(records, line)) banner = parse_json(line).value("banner", "");
  const size_t table = banner.find("memory per rank\n");
  ASSERT_NE(table, std::string::npos) << banner;
  std::istringstream rows(banner.substr(table));
  std::getline(rows, line), std::getline(rows, line);  // the title, and the names of the columns
  const auto [planned, layout] = resolved(config, 4);
  std::string sums[2];
  for (int pp = 0; pp < 2; ++pp) {
    sums[pp] = bytes_text(plan_memory(planned, layout, {{Axis::pp, pp}}).total());
    ASSERT_TRUE(std::getline(rows, line));
    EXPECT_TRUE(line.ends_with("  " + sums[pp])) << pp << ": " << line << ", expected " << sums[pp];
  }
  EXPECT_NE(sums[0], sums[1]);
}

// Steps, evaluations and stalls of saves follow each other in a run: what they are said to take fits into its time.
TEST(MetricsRows, TakeNoLongerThanTheRun) {
  const TempDir dir;
  for (const bool async : {false, true}) {
    SCOPED_TRACE(async);
    Config config = small_run(dir / (async ? "async" : "sync"));
    config.train.train_iters = 4;
    config.train.eval_interval = 2;
    config.train.eval_iters = 2;
    config.checkpoint.save_interval = 2;
    config.checkpoint.async_save = async;
    const int64_t begun = now_ns();
    ASSERT_EQ(run(config, 1).exit_code, 0);
    const double time = static_cast<double>(now_ns() - begun) * 1e-9;
    double sum = 0;
    std::map<std::string, int> kinds;
    for (const nlohmann::json& row : records_of(config.train.run_dir)) {
      SCOPED_TRACE(row.dump());
      const std::string kind = row.value("event", "step");
      const char* const key = kind == "step" ? "step_seconds" : kind == "eval" ? "seconds" : "stall_seconds";
      if (!row.contains(key)) continue;
      ++kinds[kind];
      EXPECT_GT(row.at(key), 0);
      sum += row.at(key).get<double>();
      if (kind == "checkpoint") {
        EXPECT_LE(row.at("stall_seconds"), row.at("seconds"));
        EXPECT_LE(row.at("seconds"), time);
      }
    }
    EXPECT_EQ(kinds, (std::map<std::string, int>{{"checkpoint", 2}, {"eval", 2}, {"step", 4}}));
    EXPECT_LE(sum, time);
  }
}

// Where attention stays within documents, its FLOPs are those of the keys that queries see, on any layout: samples of
// 16 tokens are two documents of 8, whose queries see 1 to 8 keys.
TEST(MetricsRows, CountTheKeysOfDocuments) {
  const TempDir dir;
  IndexedDatasetWriter writer(dir / "corpus", TokenType::u16);
  for (int document = 0; document < 200; ++document) writer.add_document(std::vector<int32_t>(8, document % 61));
  writer.finish();
  for (const Cut& how : {Cut{.t = 2, .p = 2}, Cut{.d = 2, .c = 2}}) {
    SCOPED_TRACE(how.ranks());
    Config config = cut(small_run(dir / fmt::format("{}_{}", how.t, how.d)), how);
    config.data.path = dir / "corpus";
    config.data.split = {100, 0, 0};
    config.data.reset_attention_mask = true;
    config.train.train_iters = 2;
    config.device.peak_tflops = 1e3;
    ASSERT_EQ(run(config, how.ranks()).exit_code, 0);
    const ModelConfig& m = config.model;
    ASSERT_EQ(m.seq_length, 16);
    const double tokens = static_cast<double>(*config.batch.global_batch_size * m.seq_length), keys = tokens * 4.5;
    const auto attention = 2 * static_cast<double>(m.num_layers * m.hidden_size);  // multiply-adds per key
    const double flops = 6 * (multiply_adds(m) * tokens + attention * (keys - tokens * 8));
    int rows = 0;
    for (const nlohmann::json& row : records_of(config.train.run_dir)) {
      if (!row.contains("loss")) continue;
      const double peak = row.at("step_seconds").get<double>() * how.ranks() * 1e15;
      EXPECT_NEAR(row.at("mfu_in_documents").get<double>() * peak / flops, 1, 1e-9) << row.dump();
      ++rows;
    }
    EXPECT_EQ(rows, 2);
  }
}

struct WireCase {
  const char* name;
  Cut how;
  bool bf16;
  double data, tensor, pipeline;
};

// metrics.jsonl contains every step, the console every log_interval-th step and the last.
TEST(MetricsRows, AreShownAtTheInterval) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 5;
  config.train.log_interval = 2;
  const RunResult result = run(config, 1);
  EXPECT_EQ(result.losses.size(), 5u);
  for (const auto& [line, shown] :
       {std::pair(" 1/5 ", false), {" 2/5 ", true}, {" 3/5 ", false}, {" 4/5 ", true}, {" 5/5 ", true}})
    EXPECT_EQ(result.output.find(line) != std::string::npos, shown) << line << result.output;
}

// Bytes on the wire per step, averaged over ranks, by hand from the sizes: what each class must move, and the few
// numbers of a step that ranks reduce. The losses would not show a step that moves more.
TEST(MetricsRows, HaveTheBytesOfTheLayout) {
  const TempDir dir;
  // tiny_config, untied: 4 layers, h 32, f 128, s 16, vocabulary 61, 4 micro-batches of 2. Each parameter is padded to
  // 64 elements, their total to 128.
  const auto padded = [](double n, double unit) { return std::ceil(n / unit) * unit; };
  const double norm = 2 * padded(32, 64), words = padded(61 * 32, 64);
  const double block =
      2 * norm + 3 * 32 * 32 + padded(3 * 32, 64) + 32 * 32 + padded(32, 64) + 2 * 32 * 128 + 128 + padded(32, 64);
  const double all = padded(2 * words + 16 * 32 + 4 * block + norm, 128);
  // A boundary is [s, b, h]; the loss reduces a maximum and two sums per token; a step sums four numbers, and 24 bins
  // per norm: that of the gradients and the watched norm.
  const double micro_batches = 4, boundary = 16 * 2 * 32 * 4, loss = 3 * 16 * 2 * 4, numbers = 4 * 4, bins = 24 * 8;
  // Each of two ranks sends half of a gathered or scattered tensor, and twice that of an all-reduced one. A layer has
  // two all-reduces in each direction, embedding and head one each. Under sequence parallelism each is two halves, a
  // layer gathers its two inputs again, the head its single input, and gradients of parameters replicated on both ranks
  // are all-reduced: norms, positions and the biases of row-parallel layers.
  const double whole = 4 * (2 * 2 + 2) * 32 + 2 * 32 + 16 * 32;
  for (const WireCase& c : {
           WireCase{"no_shard", {.d = 2}, false, 4 * all + numbers, 0, 0},
           WireCase{"optim", {.d = 2, .strategy = "optim"}, false, (2 + 2) * all + bins + numbers, 0, 0},
           WireCase{"optim bf16", {.d = 2, .strategy = "optim"}, true, (2 + 1) * all + bins + numbers, 0, 0},
           WireCase{"pipeline", {.p = 2}, false, 0, 0, micro_batches * boundary + numbers + 2 * bins},
           WireCase{"tensor", {.t = 2}, false, 0, micro_batches * ((4 * 4 + 2) * boundary + loss) + 2 * bins, 0},
           WireCase{"sequence",
                    {.t = 2, .sequence_parallel = true},
                    false,
                    0,
                    micro_batches * ((4 * 5 + 2.5) * boundary + loss) + whole * 4 + 2 * bins,
                    0},
       }) {
    Config config = cut(small_run(dir / c.name), c.how);
    config.model.untie_embeddings_and_output_weights = true;
    config.model.make_vocab_size_divisible_by = 1;
    config.batch.global_batch_size = 8;
    config.train.train_iters = 3;
    if (c.bf16) set_key(config, "precision.dtype", "bf16");
    ASSERT_EQ(run(config, 2).exit_code, 0);
    for (const nlohmann::json& row : records_of(config.train.run_dir)) {
      if (!row.contains("loss")) continue;
      SCOPED_TRACE(std::string(c.name) + " " + row.dump());
      EXPECT_EQ(row.at("data_wire_bytes"), c.data);
      EXPECT_EQ(row.at("tensor_wire_bytes"), c.tensor);
      EXPECT_EQ(row.at("pipeline_wire_bytes"), c.pipeline);
    }
  }
}

// Weight gathers that run between two steps are in no step's window; each counts once, in the record of the step in
// which it ends, or in none after the last step.
TEST(MetricsRows, CountTheBytesOfGathersThatRunBetweenSteps) {
  const TempDir dir;
  const auto bytes_of = [&](const char* name, bool overlaps) {
    Config config = cut(small_run(dir / name), {.d = 2, .strategy = "optim"});
    config.train.train_iters = 5;
    if (overlaps) overlap_data_parallel(config);
    EXPECT_EQ(run(config, 2).exit_code, 0);
    std::vector<double> bytes;
    for (const nlohmann::json& row : records_of(config.train.run_dir))
      if (row.contains("loss")) bytes.push_back(row.at("data_wire_bytes"));
    return bytes;
  };
  const std::vector<double> plain = bytes_of("plain", false), overlapped = bytes_of("overlapped", true);
  ASSERT_EQ(plain.size(), 5u);
  const double all = std::accumulate(plain.begin(), plain.end(), 0.0);
  const double counted = std::accumulate(overlapped.begin(), overlapped.end(), 0.0);
  EXPECT_LE(counted, all);
  EXPECT_GE(counted, all - plain.back() / 2);  // the last step's gathers
}

}  // namespace
}  // namespace trivet::test
