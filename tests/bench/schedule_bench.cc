// Engine against simulator: each schedule trains a small GPT on two pipeline ranks of one thread each, and is then
// simulated with the op costs from the run's own trace (medians over steps and micro-batches). Prints the predicted and
// measured time from the first op to the last, both bubbles, and the values that must be equal: peak slots and stashes.
//   schedule_bench [--steps N] [--layers N] [--hidden N] [--seq N] [--microbatches N]
// Each rank needs a core of its own: on a busy machine, the ratio reflects the other load.
#include <fmt/format.h>
#include <sstream>
#include <string>
#include <vector>

#include "engine/train/run.h"
#include "parallel/comm/world.h"
#include "tests/bench/random_tokens.h"
#include "tests/bench/support.h"
#include "tests/support/temp_dir.h"
#include "tools/draw/measured_run.h"

namespace trivet {
namespace {

struct Options {
  int64_t steps = 10, layers = 8, hidden = 256, seq = 128, microbatches = 8;
};

LoadedConfig config_of(const std::string& kind, const TempDir& folder, const Options& options) {
  LoadedConfig loaded;
  loaded.path = "bench";
  Config& c = loaded.config;
  c.model.num_layers = options.layers;
  c.model.hidden_size = options.hidden;
  c.model.num_attention_heads = options.hidden / 64;
  c.model.seq_length = options.seq;
  c.model.vocab_size = 2048;
  c.batch.micro_batch_size = 2;
  c.batch.global_batch_size = 2 * options.microbatches;
  c.parallel.pipeline_model_parallel_size = 2;
  c.parallel.pipeline_schedule = kind;
  if (kind.starts_with("interleaved")) c.parallel.virtual_pipeline_model_parallel_size = 2;
  c.device.threads_per_rank = 1;
  c.data.path = folder / "tokens";
  c.data.split = {100, 0, 0};
  c.train.train_iters = options.steps;
  c.train.trace = true;
  c.train.run_dir = folder / kind;
  c.device.peak_tflops = 1;  // not used here
  return loaded;
}

std::string text_of(const std::vector<Peak>& peaks) {
  std::string text;
  for (const Peak& peak : peaks) text += fmt::format("{}{}/{}", text.empty() ? "" : " ", peak.slots, peak.stashes);
  return text;
}

void report(const std::string& kind, const TempDir& folder, const Options& options) {
  const LoadedConfig loaded = config_of(kind, folder, options);
  std::ostringstream log;
  run_thread_ranks(2, [&](Communicator& world) { run_training(loaded, {}, world, log); });
  const MeasuredRun run = read_measured_run(loaded.config.train.run_dir);

  std::vector<double> makespans, bubbles;
  for (const MeasuredStep& step : run.steps) {
    const Bubble bubble = bubble_of(step.timeline);
    makespans.push_back(bubble.makespan);
    bubbles.push_back(bubble.of_total());
  }
  const Bubble predicted = bubble_of(run.simulated);
  const auto peaks = peaks_of(programs_of(run.measured), run.schedule.v);
  const bool equal = peaks == peaks_of(programs_of(run.simulated), run.schedule.v);
  fmt::print("{:16} {:9.1f} {:9.1f} {:7.3f}   {:5.1f} % {:5.1f} %   {:12} {}\n", kind, median(makespans),
             predicted.makespan, predicted.makespan / median(makespans), 100 * median(bubbles),
             100 * predicted.of_total(), text_of(peaks), equal ? "equal" : "NOT EQUAL");
  std::fflush(stdout);
}

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  trivet::Options options;
  trivet::read_options(argc, argv,
                       {{"--steps", &options.steps},
                        {"--layers", &options.layers},
                        {"--hidden", &options.hidden},
                        {"--seq", &options.seq},
                        {"--microbatches", &options.microbatches}});
  const trivet::TempDir folder;
  trivet::write_random_tokens(folder / "tokens", 2048);
  fmt::print("                       ms per step                  bubble of total    slots/stashes\n");
  fmt::print("schedule          measured predicted   ratio   measured  pred.    of each rank\n");
  for (const char* kind : {"gpipe", "1f1b", "1f1b-eager", "interleaved", "interleaved-bfs", "zb-h1", "zb-h2", "zb-v"})
    trivet::report(kind, folder, options);
  return 0;
}
