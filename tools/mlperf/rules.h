// The constants of MLPerf Training's language-model benchmarks, by round, from training_rules.adoc ("Hyperparameters",
// "Quality measure", "Run Results", "Reference Convergence Points (RCPs)") and the rulesets and reference points of
// mlperf_logging 4.1.68. Batches, cadences and positions are in sequences.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace trivet::mlperf {

inline constexpr std::string_view kRounds[] = {"3.0", "3.1", "4.0", "4.1", "5.0", "5.1", "6.0", "6.1"};

// The reference runs at one batch size: how many reached the target at each evaluation.
struct ReferencePoint {
  int64_t batch = 0;
  struct Runs {
    int64_t evaluation, runs;
  };
  std::vector<Runs> reached;
  int64_t interval = 0;  // sequences between evaluations; 0: as in the rules
};

// A key whose value must be one of these.
struct Constant {
  std::string key;
  std::vector<nlohmann::json> allowed;
};

// A key that logs a step count, and its formula (before rounding) in terms of the batch and the logged warm-up steps.
struct Steps {
  const char* key;
  double (*formula)(int64_t batch, double warmup);
  bool logged = true;  // false: logs differ, and the ruleset accepts any value
  bool exact = false;  // the checker accepts no other value
};

// A benchmark in rounds `first` to `last`. A null formula imposes no constraint.
struct Benchmark {
  std::string_view name = {};  // submission_benchmark
  std::string_view first = {}, last = {};
  int64_t sequence_length = 0;
  bool counts_tokens = false;  // positions are tokens, in metadata.epoch_num; else sequences, in samples_count
  double target = 0;           // log-perplexity: reached at or below
  int64_t cadence = 0;         // sequences from one evaluation to the next, before rounding up to whole batches
  int runs = 0;                // per result
  int64_t least_batch = 0,
          most_batch = std::numeric_limits<int64_t>::max();  // other batches need their own reference points
  double init_minutes = 30;                                  // limit from init_start to run_start, closed division
  std::vector<Constant> constants = {};
  std::vector<double> (*base_rates)(int64_t batch) = nullptr;  // allowed base learning rates
  bool scaled_rate = false;  // base_rates() is proportional to the batch, and the checker compares without tolerance
  double (*end_rate)(double base_rate) = nullptr;
  std::vector<Steps> steps = {};
  int64_t (*skipped_evaluations)(int64_t batch) = nullptr;  // most evaluations that may be skipped
  double leeway = 0;  // how much faster a result may be than the test against its reference points allows
  std::vector<ReferencePoint> reference_points = {};

  // The first allowed value of the constant; null if the key is not a constant.
  const nlohmann::json* constant(std::string_view key) const;
  bool starts_from_checkpoint() const { return counts_tokens || constant("init_checkpoint_step"); }
  // Steps before rounding; empty if the rules do not specify them.
  std::optional<double> steps_of(std::string_view key, int64_t batch, double warmup) const;
  // Sequences from one evaluation to the next: the cadence, rounded up to whole batches.
  int64_t interval(int64_t batch) const { return (cadence + batch - 1) / batch * batch; }
};

std::span<const Benchmark> benchmarks();
// Returns null if the round does not include the benchmark. Round "": the last that includes it.
const Benchmark* find_benchmark(std::string_view name, std::string_view round);

// The allowed values of precision keys (ruleset 6.1.0), and all keys that the linter knows.
const std::vector<std::string_view>& precisions();
const std::vector<std::string_view>& known_keys();

// In sequences. mean: over the reference runs without the best and the worst. least: the smallest mean that a one-sided
// t test with p = 0.05 does not find faster, less the leeway (rcp_checker.py, with pruned points). Interpolated between
// points. A batch smaller than every point's is compared with the smallest; a batch larger than all, with none.
struct Convergence {
  double mean = 0, least = 0;
  bool below = false;  // the batch is smaller than every point's
};
std::optional<Convergence> reference_convergence(const Benchmark& benchmark, int64_t batch);
// The same for a reference whose runs all used the result's batch; reached: the samples at which they reached the
// target; runs: the result's number of runs. REQUIRES: at least three of each.
Convergence convergence_of(const std::vector<double>& reached, int64_t runs);
// The mean without the smallest and the largest value. REQUIRES: at least three values.
double olympic_mean(std::vector<double> values);

}  // namespace trivet::mlperf
