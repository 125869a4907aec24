// Communication hidden by overlap: two ranks of one thread each, over an emulated link (comm.link_gbps) slow enough
// that a step's communication takes half as long as its arithmetic.
//
//   data parallel    optim (ZeRO-1): reduce-scatter of gradients, all-gather of weights; none, one, both overlapped
//   tensor parallel  sequence parallelism; none, bulk, ring, pipeline
//
// exposed: time on the wire while nothing was computed, from the trace, averaged over both ranks. "of none": its ratio
// to that without overlap. hidden: 1 - (step - step without a link) / (step of none - step without a link), end to end.
//   overlap_bench [--steps N] [--layers N] [--hidden N] [--seq N]
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/config/validate.h"
#include "engine/metrics/accounting.h"
#include "engine/train/run.h"
#include "parallel/comm/world.h"
#include "tests/bench/random_tokens.h"
#include "tests/bench/support.h"
#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

struct Options {
  int64_t steps = 10, layers = 12, hidden = 256, seq = 128;
};

Config base_config(const TempDir& folder, const Options& options) {
  Config c;
  c.model.num_layers = options.layers;
  c.model.hidden_size = options.hidden;
  c.model.num_attention_heads = options.hidden / 64;
  c.model.seq_length = options.seq;
  c.model.vocab_size = 512;
  c.batch.micro_batch_size = 4;
  c.device.threads_per_rank = 1;
  c.data.path = folder / "tokens";
  c.data.split = {100, 0, 0};
  c.train.train_iters = options.steps;
  c.train.run_dir = folder / "run";
  c.device.peak_tflops = 1;  // not used here
  return c;
}

struct Result {
  double step_ms = 0, wire_ms = 0, wait_ms = 0;  // medians over the steps after the second
};

Result run(const Config& config) {
  std::filesystem::remove_all(config.train.run_dir);
  std::ostringstream log;
  const LoadedConfig loaded{.config = config, .origins = {}, .path = "bench"};
  run_thread_ranks(2, [&](Communicator& world) { run_training(loaded, {}, world, log); });
  std::vector<double> step, wire, wait;
  std::ifstream in(config.train.run_dir + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto report = nlohmann::json::parse(line);
    if (!report.contains("step_seconds") || report["step"] <= 2) continue;
    const double ms = 1e3 * report["step_seconds"].get<double>();
    step.push_back(ms);
    wire.push_back(ms * report["exposed_fraction"].get<double>());
    wait.push_back(ms * report["wait_fraction"].get<double>());
  }
  return {median(step), median(wire), median(wait)};
}

void print(const std::string& name, const Result& result, const Result& none, const Result& no_link) {
  fmt::print("  {:34} {:8.1f} ms   exposed wire {:7.1f} ms {:6.1f} % of none   waiting {:6.1f} ms   hidden {:5.1f} %\n",
             name, result.step_ms, result.wire_ms, 100 * result.wire_ms / none.wire_ms, result.wait_ms,
             100 * (1 - (result.step_ms - no_link.step_ms) / (none.step_ms - no_link.step_ms)));
  std::fflush(stdout);
}

void data_parallel(Config config) {
  config.parallel.data_parallel_sharding_strategy = Sharding::optim;
  config.parallel.bucket_size = 150'000;
  const Result no_link = run(config);
  // Each rank sends half of the fp32 gradients, and half of the fp32 weights.
  const double bytes =
      2 * 4 * 0.5 * static_cast<double>(count_parameters(model_spec_of(config.model).with_vocab(512)).total());
  config.comm.links[class_of(comm_of("data"))].gbps = bytes * 8 / 1e9 / (0.5 * no_link.step_ms / 1e3);
  fmt::print(
      "data parallel, optim, {:.1f} MiB per rank and step over {:.3f} Gbit/s: {:.1f} ms; without a link {:.1f} ms\n",
      bytes / (1 << 20), *config.comm.links[class_of(comm_of("data"))].gbps, 0.5 * no_link.step_ms, no_link.step_ms);
  const Result none = run(config);
  print("no overlap", none, none, no_link);
  config.overlap.overlap_grad_reduce = true;
  print("overlap_grad_reduce", run(config), none, no_link);
  config.overlap.overlap_param_gather = true;
  print("overlap_grad_reduce, _param_gather", run(config), none, no_link);
}

void tensor_parallel(Config config) {
  config.parallel.tensor_model_parallel_size = 2;
  config.parallel.sequence_parallel = true;
  const Result no_link = run(config);
  // A layer gathers or reduces [s, b, h] fp32 four times forward and six times backward; half the bytes cross the wire.
  const double bytes = 0.5 * 4 * 10 *
                       static_cast<double>(config.model.num_layers * config.model.seq_length *
                                           config.batch.micro_batch_size * config.model.hidden_size);
  config.comm.links[class_of(comm_of("tensor"))].gbps = bytes * 8 / 1e9 / (0.5 * no_link.step_ms / 1e3);
  fmt::print("tensor parallel, {:.1f} MiB per rank and step over {:.3f} Gbit/s: {:.1f} ms; without a link {:.1f} ms\n",
             bytes / (1 << 20), *config.comm.links[class_of(comm_of("tensor"))].gbps, 0.5 * no_link.step_ms,
             no_link.step_ms);
  Result none;
  for (const TensorOverlap mode :
       {TensorOverlap::none, TensorOverlap::bulk, TensorOverlap::ring, TensorOverlap::pipeline}) {
    config.overlap.tp_comm_overlap = mode;
    const Result result = run(config);
    if (mode == TensorOverlap::none) none = result;
    print(std::string(word_of(mode)).c_str(), result, none, no_link);
  }
}

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  trivet::Options options;
  trivet::read_options(argc, argv,
                       {{"--steps", &options.steps},
                        {"--layers", &options.layers},
                        {"--hidden", &options.hidden},
                        {"--seq", &options.seq}});
  const trivet::TempDir folder;
  trivet::write_random_tokens(folder / "tokens", 512);
  const trivet::Config config = trivet::base_config(folder, options);
  trivet::data_parallel(config);
  trivet::tensor_parallel(config);
  return 0;
}
