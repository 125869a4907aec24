// Full training steps of GPT-2 124M, s = 1024, b = 4, on random tokens: milliseconds, tokens/s and MFU against the
// matrix products measured in the same run, causal convention. The floor of a step is its model FLOPs at that peak.
//   train_bench [--steps N] [--dtype fp32|bf16] [--layers N]
// Then the weak scaling of data parallelism: two ranks of one thread against one rank of one thread.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/data/indexed_dataset.h"
#include "engine/metrics/accounting.h"
#include "engine/train/trainer.h"
#include "kernels/cpu/gemm_peak.h"
#include "parallel/comm/world.h"
#include "tests/bench/random_tokens.h"

namespace trivet {
namespace {

struct Options {
  int steps = 4;
  int64_t layers = 12;
  std::vector<std::string> dtypes{"fp32", "bf16"};
};

struct Result {
  double seconds = 0;                        // of a step: the median after the first
  double peak = 0;                           // TFLOP/s of all ranks together, all measuring at once
  std::map<std::string, double> seconds_of;  // by op, on rank 0, of the last step
};

Result run(const IndexedDataset& tokens, const std::string& dtype, int ranks, int threads, const Options& options) {
  LoadedConfig loaded;
  loaded.path = "bench";
  loaded.config.model = {.num_layers = options.layers,
                         .hidden_size = 768,
                         .ffn_hidden_size = 3072,
                         .num_attention_heads = 12,
                         .seq_length = 1024,
                         .vocab_size = 50257,
                         .init_method_std = 0.02};
  loaded.config.batch.micro_batch_size = 4;
  loaded.config.precision.dtype = dtype;
  loaded.config.device.threads_per_rank = threads;
  loaded.config.data.path = tokens.prefix();
  loaded.config.train.train_iters = 1000;
  const Layout layout = resolve(loaded, {.world_size = ranks});
  const GptDataset data(std::make_shared<const IndexedDataset>(tokens.prefix()), {0, 1},
                        {.name = "train", .seq_length = 1024, .vocab_size = 50257, .seed = 1});
  Result result;
  run_thread_ranks(ranks, [&](Communicator& world) {
    Trainer trainer(loaded.config, layout, world, data, nullptr);
    world.barrier();
    double peak = measure_gemm_peak_tflops(trainer.device(), trainer.ops(), dtype_of(loaded.config.precision));
    world.barrier();
    std::vector<double> seconds;
    std::vector<Span> spans;
    for (int i = 0; i <= options.steps; ++i) {
      trainer.trace().rows().front().take(spans);
      const StepResult step = trainer.step();
      seconds.push_back(static_cast<double>(step.end_ns - step.start_ns) * 1e-9);
    }
    world.barrier();
    // Once more behind the steps: these machines change their speed.
    peak = std::max(peak, measure_gemm_peak_tflops(trainer.device(), trainer.ops(), dtype_of(loaded.config.precision)));
    if (world.rank() != 0) return;
    seconds.erase(seconds.begin());
    std::sort(seconds.begin(), seconds.end());
    result.seconds = seconds[seconds.size() / 2];
    result.peak = peak * ranks;
    trainer.trace().rows().front().take(spans);
    for (const Span& span : spans)
      if (span.info.category != Category::phase)
        result.seconds_of[span.info.name] += static_cast<double>(span.end_ns - span.start_ns) * 1e-9;
  });
  return result;
}

void report(const IndexedDataset& tokens, const Options& options) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  ModelConfig model{.num_layers = options.layers,
                    .hidden_size = 768,
                    .ffn_hidden_size = 3072,
                    .num_attention_heads = 12,
                    .seq_length = 1024,
                    .vocab_size = 50257};
  const double flops = flops_per_step(model, 50257, 4, FlopsConvention::causal);
  for (const std::string& dtype : options.dtypes) {
    const Result result = run(tokens, dtype, 1, cores, options);
    const double floor = flops / (result.peak * 1e12);
    fmt::print(
        "{} one rank, {} threads: {:.0f} ms a step, {:.0f} tokens/s, peak {:.3f} TFLOP/s, floor {:.0f} ms, MFU "
        "{:.1f}%\n",
        dtype, cores, result.seconds * 1e3, 4096 / result.seconds, result.peak, floor * 1e3,
        100 * floor / result.seconds);
    for (const auto& [name, seconds] : result.seconds_of)
      fmt::print("    {:26} {:8.1f} ms {:5.1f}%\n", name, seconds * 1e3, 100 * seconds / result.seconds);
    const Result one = run(tokens, dtype, 1, 1, options), two = run(tokens, dtype, 2, 1, options);
    fmt::print("{} data parallel, one thread a rank: 1 rank {:.0f} ms, 2 ranks {:.0f} ms: {:.1f}% of twice one rank\n",
               dtype, one.seconds * 1e3, two.seconds * 1e3, 100 * one.seconds / two.seconds);
  }
}

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  trivet::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--steps")) options.steps = std::atoi(argv[i + 1]);
    else if (!std::strcmp(argv[i], "--dtype")) options.dtypes = {argv[i + 1]};
    else if (!std::strcmp(argv[i], "--layers")) options.layers = std::atoi(argv[i + 1]);
    else return fmt::print(stderr, "train_bench: unknown option {}\n", argv[i]), 64;
  }
  const std::string prefix = (std::filesystem::temp_directory_path() / "trivet-train-bench").string();
  trivet::write_random_tokens(prefix, 50257);
  trivet::report(trivet::IndexedDataset(prefix), options);
  std::filesystem::remove(prefix + ".bin");
  std::filesystem::remove(prefix + ".idx");
  return 0;
}
