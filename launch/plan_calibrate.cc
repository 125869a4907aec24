// trivet plan --score and --calibrate: compares predictions with measured runs, and fits a system spec to them.
#include <algorithm>
#include <array>
#include <fmt/ranges.h>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "base/files.h"
#include "launch/commands.h"
#include "launch/plan.h"
#include "launch/redrawn_line.h"
#include "tools/plan/calibrate.h"
#include "tools/plan/calibration_report.h"

namespace trivet {
namespace {

// GPU constants that are fitted to published runs of large models; the rest come from datasheets and NCCL's source.
constexpr std::array<std::string_view, 10> kFitted = {
    "gemm_share", "gemm_k0",         "attention_forward", "attention_backward", "memory_share",
    "kernel_us",  "nvlink_gb_per_s", "network_share",     "contention",         "host_us"};
constexpr size_t kMostFitted = 14;

std::vector<const SystemKey*> keys_of(const std::vector<std::string>& names) {
  std::vector<const SystemKey*> keys;
  for (const std::string& name : names) {
    const auto key = std::ranges::find(system_keys(), name, &SystemKey::name);
    if (key == system_keys().end() || !std::holds_alternative<double System::*>(key->member))
      throw ConfigError(
          fmt::format("--fit: found {}, expected constants of a system that are not counts", quote(name)));
    keys.push_back(&*key);
  }
  if (keys.size() > kMostFitted)
    throw ConfigError(fmt::format("--fit: found {} constants, expected at most {}", keys.size(), kMostFitted));
  return keys;
}

std::vector<size_t> all_of(const MeasuredRuns& runs) {
  std::vector<size_t> all(runs.rows().size());
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

void print_errors(const MeasuredRuns& runs, const std::vector<double>& predicted, const CalibrationOptions& options) {
  if (options.json) fmt::print("{}\n", json_of_errors(runs, predicted).dump(2));
  else print_blocks(describe_errors(runs, predicted));
  if (!options.plot.empty()) write_file(options.plot, plot_errors(runs, predicted));
}

// Fits the constants to one half of the rows and prints their errors on the other.
void print_cross_validation(const MeasuredRuns& runs, const std::vector<const SystemKey*>& keys,
                            const std::vector<double>& start, RedrawnLine& line) {
  TextBlock block{.title = "errors on rows that the fit has not seen"};
  for (const char* name : {"fitted to", "tested on", "rows", "mean", "median", "most", "bias"})
    block.column(name, name == std::string_view("fitted to") || name == std::string_view("tested on") ? 'l' : 'r');
  const auto add = [&](const char* fitted_to, const char* tested_on, auto&& is_fitted) {
    std::vector<size_t> seen, others;
    for (const size_t i : all_of(runs)) (is_fitted(i) ? seen : others).push_back(i);
    if (seen.size() <= keys.size() || others.empty()) return;
    const auto values = fit(runs, seen, keys, start, {.progress = [&](int round, double cost) {
                              line.draw(fmt::format("fit to {}: round {}, cost {:.4g}", fitted_to, round, cost));
                            }});
    const Errors e = errors_of(runs, others, runs.predict(others, keys, values));
    block.rows.push_back(row_of_errors({fitted_to, tested_on}, e));
  };
  add("even rows", "odd rows", [](size_t i) { return i % 2 == 0; });
  add("odd rows", "even rows", [](size_t i) { return i % 2 == 1; });
  std::vector<int> ranks;
  for (const MeasuredRow& row : runs.rows()) ranks.push_back(row.layout.mesh.world());
  std::ranges::sort(ranks);
  const int middle = ranks[ranks.size() / 2];
  add("fewer ranks", "more ranks", [&](size_t i) { return runs.rows()[i].layout.mesh.world() <= middle; });
  line.clear();
  if (block.rows.size() > 1) print_blocks({block});
}

}  // namespace

void add_calibration_options(CLI::App& command, CalibrationOptions& options) {
  const auto files = [&](const char* name, std::vector<std::string>& to, const char* help) {
    return command.add_option(name, to, help)->option_text("ROWS.csv|metrics.jsonl ...");
  };
  CLI::Option* const score = files("--score", options.score, "compare predictions with measured runs");
  CLI::Option* const calibrate = files("--calibrate", options.calibrate,
                                       "fit the system spec to them; without a file: measure this machine's CPUs")
                                     ->expected(0, CLI::detail::expected_max_vector_size)
                                     ->excludes(score);
  command.add_option("--fit", options.fit, "constants to fit instead of the usual ones")
      ->option_text("KEY ...")
      ->needs(calibrate);
  command.add_option("--out", options.out, "write the spec with the fitted constants")
      ->option_text("FILE.yaml")
      ->check(file_name())
      ->needs(calibrate);
  command.add_flag("--cross-validate", options.cross_validate, "fit to parts of the rows, and test on the others")
      ->needs(calibrate);
  command.add_option("--plot", options.plot, "draw predicted against measured times")
      ->option_text("FILE.svg")
      ->check(svg_name());
  for (const char* other : {"--ranks", "--set"}) score->excludes(command.get_option(other));
  calibrate->excludes(command.get_option("--json"));
}

void score_or_calibrate(const CalibrationOptions& options) {
  const bool fits = !options.calibrate.empty();
  std::vector<std::string> read = fits ? options.calibrate : options.score;
  read.push_back(options.system);
  check_writable({options.out, options.plot}, read);
  std::vector<MeasuredRow> rows;
  for (const std::string& file : fits ? options.calibrate : options.score)
    for (MeasuredRow& row : read_rows(file)) rows.push_back(std::move(row));
  std::vector<std::string> names = options.fit;
  if (names.empty()) names.assign(kFitted.begin(), kFitted.end());
  const std::vector<const SystemKey*> keys = keys_of(names);
  if (options.system.empty()) throw ConfigError("--system: is missing, expected one of --systems, or a file");
  const System spec = load_system(options.system, options.system_sets);
  RedrawnLine line;
  const MeasuredRuns runs(std::move(rows), options.system, options.system_sets, [&](size_t done, size_t all) {
    line.draw(fmt::format("recording {} of {} runs", done, all));
  });
  line.clear();
  const std::vector<size_t> all = all_of(runs);
  if (!fits) return print_errors(runs, runs.predict(all), options);

  std::vector<double> start;
  for (const SystemKey* key : keys) start.push_back(value_of(spec, *key));
  const std::vector<double> values = fit(runs, all, keys, start, {.progress = [&](int round, double cost) {
                                           line.draw(fmt::format("fit: round {}, cost {:.4g}", round, cost));
                                         }});
  line.clear();
  TextBlock block{.title = "constants"};
  for (const char* name : {"constant", "before", "fitted", "unit"})
    block.column(name, *name == 'c' || *name == 'u' ? 'l' : 'r');
  for (size_t k = 0; k < keys.size(); ++k)
    block.rows.push_back({std::string(keys[k]->name), fmt::format("{:.4g}", start[k]), fmt::format("{:.4g}", values[k]),
                          std::string(keys[k]->unit)});
  print_blocks({block});
  print_errors(runs, runs.predict(all, keys, values), options);
  if (!options.out.empty()) write_file(options.out, with_values(page_text(options.system), keys, values));
  if (options.cross_validate) print_cross_validation(runs, keys, start, line);
}

}  // namespace trivet
