#include "tools/plan/planned_run.h"

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <tuple>
#include <utility>

#include "engine/train/run.h"
#include "tools/plan/device_memory.h"

namespace trivet {
namespace {

constexpr std::string_view kMicroBatch = "batch.micro_batch_size",
                           kChunks = "parallel.virtual_pipeline_model_parallel_size";

using Sets = std::vector<std::string>;

bool is_left(const LoadedConfig& run, std::string_view key) { return std::ranges::count(run.left_to_planner, key) > 0; }

std::vector<Sets> micro_batch_sizes(const LoadedConfig& run, int ranks) {
  if (!is_left(run, kMicroBatch)) return {{}};
  const auto global = run.config.batch.global_batch_size;
  if (!global)
    throw ConfigError(
        fmt::format("{}: auto needs batch.global_batch_size, which is divided into micro-batches", kMicroBatch));
  const int64_t samples = *global / std::max(1, ranks / ranks_of_one_replica(run.config));  // per data-parallel rank
  std::vector<Sets> sizes;
  for (int64_t b = 1; b <= samples; b = b < 64 ? b + 1 : 2 * b)
    if (samples % b == 0) sizes.push_back({fmt::format("{}={}", kMicroBatch, b)});
  if (sizes.empty()) sizes.push_back({fmt::format("{}=1", kMicroBatch)});  // resolve() rejects it
  return sizes;
}

std::vector<Sets> chunk_counts(const LoadedConfig& run) {
  if (!is_left(run, kChunks)) return {{}};
  const ParallelConfig& c = run.config.parallel;
  const bool usual = c.pipeline_schedule == "1f1b" || c.pipeline_schedule == "interleaved";
  // At most one chunk per layer; embedding and head may count as layers, too.
  const int64_t most = usual && c.pipeline_model_parallel_size == 1
                           ? 1
                           : std::max<int64_t>(1, (run.config.model.num_layers + 2) / c.pipeline_model_parallel_size);
  std::vector<Sets> counts;
  for (int64_t v = 1; v <= most; ++v) {
    counts.push_back({fmt::format("{}={}", kChunks, v)});
    if (usual) counts.back().push_back(fmt::format("parallel.pipeline_schedule={}", v == 1 ? "1f1b" : "interleaved"));
  }
  return counts;
}

// The legal runs among all combinations of the values.
std::vector<LegalRun> candidates_of(const LoadedConfig& run, int ranks) {
  std::vector<LegalRun> legal;
  std::string first_refusal;
  const std::vector<Sets> counts = chunk_counts(run);
  for (const Sets& size : micro_batch_sizes(run, ranks))
    for (const Sets& count : counts) {
      Sets sets = size;
      sets.insert(sets.end(), count.begin(), count.end());
      try {
        legal.push_back(legal_run(run, ranks, sets));
      } catch (const ConfigError& error) {
        if (first_refusal.empty()) first_refusal = error.what();
      }
    }
  if (legal.empty()) throw ConfigError("no value that the planner may choose is valid; the first: " + first_refusal);
  return legal;
}

std::string choice_text(const LoadedConfig& run, const LegalRun& chosen, size_t fitting, size_t of) {
  std::string text;
  const auto add = [&](std::string_view key, int64_t value) {
    if (is_left(run, key)) text += fmt::format("{}{} is {}", text.empty() ? "" : ", ", key, value);
  };
  add(kMicroBatch, chosen.loaded.config.batch.micro_batch_size);
  add(kChunks, chosen.layout.schedule.v);
  if (const std::string& schedule = chosen.loaded.config.parallel.pipeline_schedule;
      schedule != run.config.parallel.pipeline_schedule)
    text += fmt::format(", which makes parallel.pipeline_schedule {}", schedule);
  return text +
         (fitting > 0 ? fmt::format(": the fastest of {} that fit", fitting)
                      : std::string(": none fits, and this one needs the least memory")) +
         fmt::format(", of {} legal ones", of);
}

}  // namespace

void check_is_planned(const Config& config) {
  if (config.train.skip_train) throw ConfigError("train.skip_train: is true, but only training steps can be planned");
  if (batch_sizes_of(config, config.batch.micro_batch_size).parts.size() > 1)
    throw ConfigError(
        "the batch size changes over the run, but a plan takes one: leave the ramp out, with batch."
        "global_batch_size as the batch to plan");
}

LegalRun legal_run(const LoadedConfig& run, int ranks, std::span<const std::string> sets) {
  LegalRun legal{.loaded = with_sets(run, sets), .layout = {}};
  legal.layout = resolve(legal.loaded, facts_of(legal.loaded.config, ranks));
  check_is_planned(legal.loaded.config);
  return legal;
}

RunPlan plan_run(const LoadedConfig& run, int ranks, const System& system, const PredictOptions& options) {
  const auto predicted = [&](const LegalRun& legal, const PredictOptions& how = {}) {
    return predict(legal.loaded.config, legal.layout, system, how);
  };
  if (run.left_to_planner.empty()) {
    LegalRun legal = legal_run(run, ranks);
    Prediction prediction = predicted(legal, options);
    return {std::move(legal), std::move(prediction)};
  }
  const std::vector<LegalRun> candidates = candidates_of(run, ranks);
  const LegalRun* chosen = nullptr;
  std::pair<bool, double> least;  // (false, seconds) if the run fits, else (true, bytes)
  size_t fitting = 0;
  for (const LegalRun& legal : candidates) {
    const auto& [config, layout] = std::tie(legal.loaded.config, legal.layout);
    const int64_t bytes = sum_of(memory_of_worst_rank(config, layout, system));
    const bool fits = bytes <= device_bytes(system, ranks);
    fitting += fits ? 1 : 0;
    if (!fits && fitting > 0) continue;
    const std::pair cost{
        !fits, fits ? predict_step_seconds(rehearse_on(config, layout, system), *costs_of(config, layout, system))
                    : static_cast<double>(bytes)};
    if (!chosen || cost < least) chosen = &legal, least = cost;
  }
  return {*chosen, predicted(*chosen, options), choice_text(run, *chosen, fitting, candidates.size())};
}

}  // namespace trivet
