// Full training steps on random tokens.
//
//   train_bench --model 124m|1.3b|6.7b-layers|tiny [--device auto|cpu|cuda] [--dtype bf16|fp32] [--layers N]
//               [--micro-batch B] [--micro-batches M] [--steps N] [--warm-up N] [--cuda-graphs none|local]
//               [--loss-rows N --pairs P]
// One rank, on a GPU if there is one. The micro-batches fill an H200; a GPU with less than 100 GiB gets half. `tiny` is
// for trying the program. On a GPU, steps are queued ahead, as in `trivet train`. Prints the median step time,
// tokens/s, MFU in both conventions against the data sheet and against a GEMM measured here, memory by purpose, the
// host's time to queue a step, and the time by op from the spans of the same steps. --cuda-graphs is
// device.cuda_graph_impl: each graph is one span. The last line is machine-readable. On a GPU, --model defaults to
// 124m.
//
//   train_bench [--steps N] [--dtype fp32|bf16] [--layers N] [--threads N] [--cpu-isa NAME]
// On a CPU: GPT-2 124M, s = 1024, b = 4. Prints milliseconds, tokens/s and MFU (causal convention) against the GEMM
// peak measured in the same run. The floor of a step is its model FLOPs at that peak. Then the parts of the last step,
// each with its floor (timed_ops.h). Without --threads, uses all cores, and then measures the weak scaling of data
// parallelism: two ranks of one thread against one rank of one thread.
//
// --blocks llama, in either mode: Llama's blocks (RMSNorm, RoPE, SwiGLU of 8/3 h, three or four query heads per group,
// no biases), as in torch_step.py --blocks llama. --loss-rows N, in either mode: model.cross_entropy_chunk_rows; by
// default, the logits are computed whole. With --pairs: P pairs of steps instead, alternating with and without chunks
// on one CPU thread. Measures CPU time, not wall-clock time, so that other load on the machine matters less.
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/text.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/data/gpt_dataset.h"
#include "engine/data/indexed_dataset.h"
#include "engine/metrics/accounting.h"
#include "engine/train/trainer.h"
#include "kernels/ops.h"
#include "parallel/comm/world.h"
#include "tests/bench/measured_steps.h"
#include "tests/bench/random_tokens.h"
#include "tests/bench/support.h"
#include "tests/bench/timed_ops.h"

namespace trivet {
namespace {

struct Model {
  std::string_view name;
  int64_t layers, hidden, heads, seq, micro_batch;  // micro_batch: with 100 GiB or more
  int64_t vocab = 50257;
};
constexpr Model kModels[] = {{"124m", 12, 768, 12, 1024, 64},         // GPT-2
                             {"1.3b", 24, 2048, 16, 2048, 16},        // GPT-3 XL, with head_dim 128
                             {"6.7b-layers", 8, 4096, 32, 2048, 16},  // 8 of GPT-3 6.7B's 32 layers
                             {"tiny", 2, 128, 2, 64, 4, 512}};

struct Options {
  std::string model, device = "auto", graphs = "none", cpu_isa = "auto", blocks = "gpt";
  std::optional<std::string> dtype;
  std::optional<int> steps, warm_up, threads;
  std::optional<int64_t> layers, micro_batch;
  int64_t micro_batches = 1, loss_rows = 0;
  int pairs = 0;
};

struct TemporaryTokens {
  explicit TemporaryTokens(int64_t vocab) { write_random_tokens(prefix, vocab); }
  ~TemporaryTokens() {
    for (const char* end : {".bin", ".idx"}) std::filesystem::remove(prefix + end);
  }
  const std::string prefix =
      (std::filesystem::temp_directory_path() / fmt::format("trivet-train-bench.{}", getpid())).string();
};

ModelConfig config_of(const Model& model, const Options& options) {
  ModelConfig config{.num_layers = options.layers.value_or(model.layers),
                     .hidden_size = model.hidden,
                     .ffn_hidden_size = 4 * model.hidden,
                     .num_attention_heads = model.heads,
                     .seq_length = model.seq,
                     .vocab_size = model.vocab};
  config.cross_entropy_chunk_rows = options.loss_rows;
  if (options.blocks == "llama") {
    config.ffn_hidden_size.reset();
    config.num_query_groups = model.heads / (model.heads % 3 == 0 ? 3 : model.heads % 4 == 0 ? 4 : 1);
    config.normalization = Norm::rmsnorm;
    config.position_embedding_type = Positions::rope;
    config.swiglu = true;
    config.add_bias_linear = false;
  }
  return config;
}

GptDataset dataset_of(const IndexedDataset& tokens, const ModelConfig& model) {
  return {std::make_shared<const IndexedDataset>(tokens.prefix()),
          {0, 1},
          {.name = "train", .seq_length = model.seq_length, .vocab_size = *model.vocab_size, .seed = 1}};
}

// ---- one rank: all measurements of its steps

void print_ops(const MeasuredSteps& measured, const TokenFlops& flops, double tokens) {
  double products = 0, attention = 0;
  for (const auto& [name, op] : measured.ops) {
    if (name == "matmul") products += op.seconds;
    if (name.starts_with("attention_")) attention += op.seconds;
  }
  const double window =
      static_cast<double>(measured.stats.window) * 1e-9 / static_cast<double>(measured.seconds.size());
  fmt::print("{:<28} {:>9} {:>7} {:>8}\n", "op, of a step", "ms", "share", "calls");
  std::vector<std::pair<std::string, OpTime>> ops(measured.ops.begin(), measured.ops.end());
  std::sort(ops.begin(), ops.end(), [](const auto& x, const auto& y) { return x.second.seconds > y.second.seconds; });
  for (const auto& [name, op] : ops)
    fmt::print("{:<28} {:>9.3f} {:>6.2f}% {:>8.1f}\n", name, op.seconds * 1e3, 100 * op.seconds / window, op.calls);
  if (measured.ops.contains("graph")) return;  // a graph's span hides its ops
  fmt::print("model FLOPs of products: {:.1f} TFLOP/s in matmul; of attention, causal: {:.1f} TFLOP/s\n",
             (flops.layers + flops.logits) * tokens / products * 1e-12, flops.attention * tokens / attention * 1e-12);
}

void report_steps(const IndexedDataset& tokens, const Model& model, const Options& options) {
  const std::vector<std::string> sets = {"precision.dtype=" + options.dtype.value_or("bf16"),
                                         "device.kind=" + options.device, "device.cuda_graph_impl=" + options.graphs};
  LoadedConfig loaded{.config = parse_sets(sets), .origins = {}, .path = "bench"};
  loaded.config.model = config_of(model, options);
  const bool gpu = options.device != "cpu" && cuda_device_count() > 0;
  const bool small = gpu && create_cuda_device(0)->memory_bytes() < int64_t{100} << 30;  // as in torch_step.py
  loaded.config.batch.micro_batch_size = options.micro_batch.value_or(model.micro_batch / (small ? 2 : 1));
  loaded.config.batch.global_batch_size = loaded.config.batch.micro_batch_size * options.micro_batches;
  loaded.config.data.path = tokens.prefix();
  loaded.config.train.train_iters = 1000;
  const Layout layout = resolve(loaded, {.world_size = 1});
  const Config& config = loaded.config;
  const GptDataset data = dataset_of(tokens, config.model);
  run_thread_ranks(1, [&](Communicator& world) {
    BatchLoader batches(data, batch_plan_of(config, layout, world.rank()), config.data.prefetch);
    Trainer trainer(config, layout, world, &batches);
    const DType dtype = config.precision.dtype;
    const int steps = options.steps.value_or(gpu ? 20 : 4);
    const double batch = static_cast<double>(*config.batch.global_batch_size);
    const double step_tokens = batch * static_cast<double>(model.seq);
    fmt::print("{}: {} layers, h {}, {} heads, s {}, {} parameters; {}, {} x {} samples, {} tokens per step\n",
               model.name, config.model.num_layers, model.hidden, model.heads, model.seq,
               grouped(count_parameters(model_spec_of(config.model)).total()), name_of(dtype), options.micro_batches,
               config.batch.micro_batch_size, grouped(static_cast<int64_t>(step_tokens)));
    fmt::print("memory   ");
    const MemoryPlan memory = trainer.state().memory();
    for (const MemoryItem& item : memory.items)
      if (item.bytes > 0) fmt::print("{} {}, ", item.name, bytes_text(item.bytes));
    fmt::print("in all {} of {}\n", bytes_text(memory.total()),
               gpu ? bytes_text(trainer.device().memory_bytes()) : "the host's");

    StepResult first = trainer.step();  // autotunes, and touches all memory for the first time
    for (int i = 1; i < options.warm_up.value_or(gpu ? 5 : 1); ++i) trainer.step();
    const auto peak_of_products = [&] {
      return product_peak_tflops(trainer.device(), trainer.rank().ops, dtype, model.name == "tiny" ? 256 : 8192);
    };
    double product = peak_of_products();
    const MeasuredSteps measured = measure_steps(trainer, steps);
    product = std::max(product, peak_of_products());  // clock rates vary

    const auto sheet = gpu ? peak_tflops_by_name(trainer.device().name(), std::string(word_of(config.precision.dtype)))
                           : std::optional<double>();
    const double seconds = MeasuredSteps::median(measured.seconds);
    const auto mfu = [&](double of_seconds, FlopsConvention convention, double peak) {
      const double flops = flops_per_token(model_spec_of(config.model), convention).total() * step_tokens;
      return 100 * model_flops_utilisation(flops, of_seconds, 1, peak);
    };
    using enum FlopsConvention;
    const double peak = sheet.value_or(product);
    const double unspied = MeasuredSteps::median(measured.seconds_unspied);
    const double idle = 100 - 100 * measured.stats.of_window(measured.stats.compute + measured.stats.optimizer);
    fmt::print("device   {}; peak {}{:.2f} TFLOP/s in products measured here\n", trainer.device().name(),
               sheet ? fmt::format("{:.1f} TFLOP/s by its data sheet, ", *sheet) : "", product);
    fmt::print("step     {:.2f} ms (median of {}; {:.2f} to {:.2f}), {:.0f} tokens/s; without spans {:.2f} ms\n",
               seconds * 1e3, steps, measured.seconds.front() * 1e3, measured.seconds.back() * 1e3,
               step_tokens / seconds, unspied * 1e3);
    fmt::print("MFU      full {:.1f}%, causal {:.1f}% of {}{}\n", mfu(seconds, full, peak), mfu(seconds, causal, peak),
               sheet ? "the data sheet" : "the products measured",
               sheet ? fmt::format("; full {:.1f}%, causal {:.1f}% of the products measured",
                                   mfu(seconds, full, product), mfu(seconds, causal, product))
                     : "");
    fmt::print("host     queues a step in {:.2f} ms; {} nothing in {:.2f}% of a step\n", measured.host_seconds * 1e3,
               gpu ? "the GPU computes" : "computes", idle);
    if (const GraphOps* graphs = trainer.rank().graphs.get()) {
      const GraphOps::Counts& counts = graphs->counts();
      fmt::print("graphs   {}, launched {} times for {} of the {} calls of passes in all steps\n", counts.graphs,
                 counts.launches, counts.replayed, counts.calls);
    }
    fmt::print("loss     {:.4f} in step 1, {:.4f} in step {}\n", first.loss, measured.last_loss,
               options.warm_up.value_or(gpu ? 5 : 1) + steps + 1);
    print_ops(measured, flops_per_token(model_spec_of(config.model), causal), step_tokens);
    fmt::print(
        "result who=trivet{} model={} dtype={} tokens={} ms={:.3f} tokens_per_s={:.0f} mfu_full={:.2f} "
        "mfu_causal={:.2f} product_tflops={:.1f} ms_without_spans={:.3f} host_ms={:.3f} idle={:.2f}\n",
        trainer.rank().graphs ? "-graphs" : "", model.name, name_of(dtype), static_cast<int64_t>(step_tokens),
        seconds * 1e3, step_tokens / seconds, mfu(seconds, full, peak), mfu(seconds, causal, peak), product,
        unspied * 1e3, measured.host_seconds * 1e3, idle);
  });
}

// ---- the loss in chunks against whole logits

void compare_chunks(const IndexedDataset& tokens, const Model& model, const Options& options) {
  run_thread_ranks(1, [&](Communicator& world) {
    struct Side {
      LoadedConfig loaded;
      Layout layout;
      std::unique_ptr<BatchLoader> batches;
      std::unique_ptr<Trainer> trainer;
    };
    const GptDataset data = dataset_of(tokens, config_of(model, options));
    Side sides[2];  // whole, in chunks
    for (int i = 0; i < 2; ++i) {
      Side& side = sides[i];
      Options how = options;
      if (i == 0) how.loss_rows = 0;
      side.loaded = {.config = parse_sets(std::vector<std::string>{"precision.dtype=" + options.dtype.value_or("bf16"),
                                                                   "device.kind=cpu", "device.threads_per_rank=1"}),
                     .origins = {},
                     .path = "bench"};
      Config& config = side.loaded.config;
      config.model = config_of(model, how);
      config.batch.micro_batch_size = options.micro_batch.value_or(4);
      config.batch.global_batch_size = config.batch.micro_batch_size;
      config.data.path = tokens.prefix();
      config.train.train_iters = 1'000'000;
      side.layout = resolve(side.loaded, {.world_size = 1});
      side.batches = std::make_unique<BatchLoader>(data, batch_plan_of(config, side.layout, 0), config.data.prefetch);
      side.trainer = std::make_unique<Trainer>(config, side.layout, world, side.batches.get());
      side.trainer->step();
    }
    const auto seconds_of = [&](Side& side) {
      const std::clock_t start = std::clock();
      side.trainer->step();
      return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    };
    std::vector<double> seconds[2];
    for (int i = 0; i < 2 * options.pairs; ++i) {
      const size_t which = static_cast<size_t>(i % 4 == 1 || i % 4 == 2);  // neither side is always first
      seconds[which].push_back(seconds_of(sides[which]));
    }
    for (std::vector<double>& all : seconds) std::sort(all.begin(), all.end());
    const auto line = [&](const char* name, double whole, double chunks) {
      fmt::print("{:<8} whole logits {:.1f} ms, chunks of {} rows {:.1f} ms: {:.3f}\n", name, 1e3 * whole,
                 options.loss_rows, 1e3 * chunks, chunks / whole);
    };
    line("fastest", seconds[0].front(), seconds[1].front());
    line("quartile", seconds[0][seconds[0].size() / 4], seconds[1][seconds[1].size() / 4]);
    line("median", seconds[0][seconds[0].size() / 2], seconds[1][seconds[1].size() / 2]);
  });
}

// ---- on a CPU: step time and weak scaling

struct Result {
  double seconds = 0;                 // per step: the median, without the first step
  double peak = 0;                    // TFLOP/s summed over the ranks, which measure at the same time
  double copy_speed = 0;              // bytes/s on rank 0
  double last_seconds = 0;            // time of the last step on rank 0
  std::vector<TimedOps::Part> parts;  // parts of that step
};

Result run(const IndexedDataset& tokens, const std::string& dtype, int ranks, int threads, const Options& options) {
  const std::vector<std::string> sets = {"precision.dtype=" + dtype, "device.cpu_isa=" + options.cpu_isa};
  LoadedConfig loaded{.config = parse_sets(sets), .origins = {}, .path = "bench"};
  loaded.config.model = config_of(kModels[0], options);
  loaded.config.batch.micro_batch_size = 4;
  loaded.config.device.kind = DeviceKind::cpu;
  loaded.config.device.threads_per_rank = threads;
  loaded.config.data.path = tokens.prefix();
  loaded.config.train.train_iters = 1000;
  const Layout layout = resolve(loaded, {.world_size = ranks});
  const GptDataset data = dataset_of(tokens, loaded.config.model);
  Result result;
  run_thread_ranks(ranks, [&](Communicator& world) {
    BatchLoader batches(data, batch_plan_of(loaded.config, layout, world.rank()), loaded.config.data.prefetch);
    TimedOps* ops = nullptr;
    const MakeBackend timed = [&](const Config& config, Communicator& ranks_of_host, int rank_threads) {
      Backend backend = make_backend(config, ranks_of_host, rank_threads);
      auto timed_ops = std::make_unique<TimedOps>(std::move(backend.ops), layout.padded_vocab);
      ops = timed_ops.get();
      backend.ops = std::move(timed_ops);
      return backend;
    };
    Trainer trainer(loaded.config, layout, world, &batches, {.make_backend = timed});
    const auto peak = [&] {
      world.barrier();
      return measure_gemm_peak(trainer.device(), *ops, loaded.config.precision.dtype).tflops;
    };
    const double peak_before = peak(), copy_speed = measure_copy_speed(trainer.device(), *ops);
    world.barrier();
    std::vector<double> seconds;
    for (int i = 0; i <= options.steps.value_or(4); ++i) {
      ops->clear();
      const StepResult step = trainer.step();
      seconds.push_back(static_cast<double>(step.end_ns - step.start_ns) * 1e-9);
    }
    const std::vector<TimedOps::Part> parts = ops->parts();
    const double peak_after = peak();  // clock rates vary
    if (world.rank() != 0) return;
    const double last = seconds.back();
    seconds.erase(seconds.begin());
    std::sort(seconds.begin(), seconds.end());
    result = {seconds[seconds.size() / 2], std::max(peak_before, peak_after) * ranks, copy_speed, last, parts};
  });
  return result;
}

void report_on_cpu(const IndexedDataset& tokens, const Options& options) {
  const int threads = options.threads.value_or(static_cast<int>(std::thread::hardware_concurrency()));
  const double flops = flops_per_step(model_spec_of(config_of(kModels[0], options)), 4, FlopsConvention::causal);
  for (const std::string& dtype :
       options.dtype ? std::vector{*options.dtype} : std::vector<std::string>{"fp32", "bf16"}) {
    const Result result = run(tokens, dtype, 1, threads, options);
    const double floor = flops / (result.peak * 1e12);
    fmt::print(
        "{} {}, one rank, {} threads: {:.0f} ms per step, {:.0f} tokens/s, peak {:.3f} TFLOP/s, floor {:.0f} ms, MFU "
        "{:.1f}%\n",
        dtype, options.cpu_isa == "auto" ? name_of(best_cpu_isa()) : options.cpu_isa, threads, result.seconds * 1e3,
        4096 / result.seconds, result.peak, floor * 1e3, 100 * floor / result.seconds);
    print_parts(result.parts, result.last_seconds, result.peak * 1e12, result.copy_speed);
    if (options.threads) continue;
    const Result one = run(tokens, dtype, 1, 1, options), two = run(tokens, dtype, 2, 1, options);
    fmt::print("{} data parallel, one thread per rank: 1 rank {:.0f} ms, 2 ranks {:.0f} ms: {:.1f}% of twice one rank\n",
               dtype, one.seconds * 1e3, two.seconds * 1e3, 100 * one.seconds / two.seconds);
  }
}

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  using namespace trivet;
  try {
    answer_help(argc, argv,
                " --model 124m|1.3b|6.7b-layers|tiny [--device auto|cpu|cuda] [--dtype bf16|fp32] [--layers N]\n"
                "         [--micro-batch B] [--micro-batches M] [--steps N] [--warm-up N] [--cuda-graphs none|local]\n"
                "   or, on a CPU: [--steps N] [--dtype fp32|bf16] [--layers N] [--threads N] [--cpu-isa NAME]\n"
                "   and with either --blocks gpt|llama [--loss-rows N [--pairs P]]");
    Options options;
    for (int i = 1; i < argc; i += 2) {
      const std::string_view key = argv[i];
      const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
      const auto number = [&] {
        const int n = std::atoi(value);
        if (n <= 0) throw ConfigError(fmt::format("{}: found {}, expected a number above 0", key, value));
        return n;
      };
      if (!value) throw ConfigError(fmt::format("{} needs a value", key));
      if (key == "--model") options.model = value;
      else if (key == "--device") options.device = value;
      else if (key == "--dtype") options.dtype = value;
      else if (key == "--steps") options.steps = number();
      else if (key == "--warm-up") options.warm_up = number();
      else if (key == "--layers") options.layers = number();
      else if (key == "--threads") options.threads = number();
      else if (key == "--cpu-isa") options.cpu_isa = value;
      else if (key == "--micro-batch") options.micro_batch = number();
      else if (key == "--micro-batches") options.micro_batches = number();
      else if (key == "--cuda-graphs") options.graphs = value;
      else if (key == "--loss-rows") options.loss_rows = number();
      else if (key == "--pairs") options.pairs = number();
      else if (key == "--blocks" && (value == std::string_view("gpt") || value == std::string_view("llama")))
        options.blocks = value;
      else throw ConfigError(fmt::format("unknown option {}", key));
    }
    const bool on_cpu = options.device == "cpu" || (options.device == "auto" && cuda_device_count() == 0);
    const bool comparison = options.model.empty() && on_cpu;
    if (comparison &&
        (options.warm_up || options.micro_batch || options.micro_batches != 1 || options.graphs != "none"))
      throw ConfigError("--warm-up, --micro-batch, --micro-batches and --cuda-graphs go with --model");
    if (!comparison && (options.threads || options.cpu_isa != "auto"))
      throw ConfigError("--threads and --cpu-isa go with a CPU and without --model");
    const auto model = std::find_if(std::begin(kModels), std::end(kModels), [&](const Model& m) {
      return m.name == (options.model.empty() ? "124m" : options.model);
    });
    if (model == std::end(kModels))
      throw ConfigError(fmt::format("--model: found {}, expected 124m, 1.3b, 6.7b-layers or tiny", options.model));
    const TemporaryTokens file(model->vocab);
    const IndexedDataset tokens(file.prefix);
    if (options.pairs > 0) compare_chunks(tokens, *model, options);
    else if (comparison) report_on_cpu(tokens, options);
    else report_steps(tokens, *model, options);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "train_bench: {}\n", error.what());
    return error.exit_code();
  }
}
