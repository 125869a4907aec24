#include "tools/mlperf/summary.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <set>

#include "base/check.h"
#include "base/files.h"
#include "base/svg.h"
#include "tools/mlperf/rules.h"

namespace trivet::mlperf {
namespace {

// Samples to the target of each run; infinite for a run that missed it.
std::vector<double> samples_of(std::span<const RunResult> runs) {
  std::vector<double> samples;
  for (const RunResult& run : runs) samples.push_back(run.converged() ? run.samples() : HUGE_VAL);
  return samples;
}
bool all_converged(std::span<const RunResult> runs) { return std::ranges::all_of(runs, &RunResult::converged); }

// Tests the runs against the reference in both directions, with one-sided t tests at p = 0.05: the mean of the runs
// without the best and the worst must be neither significantly below nor significantly above the reference.
TextBlock test_block(std::span<const RunResult> runs, const Reference& reference) {
  const std::vector<double> own = samples_of(runs);
  TextBlock block{.title = "against the reference"};
  // The best and the worst run of each side are dropped, and the t test needs at least one degree of freedom.
  if (own.size() < 3 || own.size() + reference.samples.size() < 7 || !all_converged(runs)) {
    block.rows.push_back({"test", "needs three runs or more, all of which converged, and seven with the reference's"});
    return block;
  }
  const Convergence limit = convergence_of(reference.samples, static_cast<int64_t>(own.size()));
  const double mean = olympic_mean(own), least = std::max(limit.least, 0.0), most = 2 * limit.mean - limit.least;
  block.rows.push_back({"reference", fmt::format("{:.0f} samples to the target, mean of {} runs without best and worst",
                                                 limit.mean, reference.samples.size())});
  block.rows.push_back({"these runs", fmt::format("{:.0f}", mean)});
  block.rows.push_back({"accepted", fmt::format("{:.0f} to {:.0f} (one-sided t tests, p = 0.05)", least, most)});
  block.rows.push_back({"verdict", mean < least  ? "faster than the reference: not accepted"
                                   : mean > most ? "slower than the reference"
                                                 : "as the reference"});
  return block;
}

TextBlock score_block(std::span<const RunResult> runs) {
  TextBlock block{.title = "result"};
  const auto score = score_of(runs);
  block.rows.push_back(
      {"score", score ? fmt::format("{:.3f} minutes, the mean without the fastest and the slowest run", *score)
                      : "none: it takes three runs, of which at most one may fail to converge"});
  std::set<int64_t> seeds;
  const auto had = [&](const RunResult& run) { return run.seed >= 0 && !seeds.insert(run.seed).second; };
  if (std::ranges::any_of(runs, had))
    block.rows.push_back({"seeds", "two runs have the same one, and a submission must not repeat one"});
  const Benchmark* rules = find_benchmark(runs[0].benchmark, "");
  if (!rules || !score) return block;
  if (static_cast<int64_t>(runs.size()) != rules->runs)
    block.rows.push_back({"runs", fmt::format("{}, and a submission has {}", runs.size(), rules->runs)});
  const auto reference = reference_convergence(*rules, runs[0].batch);
  const std::vector<double> own = samples_of(runs);
  const double mean = olympic_mean(own);  // finite, because a score exists
  if (!reference) return block;
  if (mean < reference->least)
    block.rows.push_back({"convergence", fmt::format("{:.0f} samples, faster than the reference allows ({:.0f})", mean,
                                                     reference->least)});
  else if (mean < reference->mean)
    block.rows.push_back({"normalized", fmt::format("{:.3f} minutes, as the reference takes {:.4f} times the samples",
                                                    *score * reference->mean / mean, reference->mean / mean)});
  return block;
}

}  // namespace

RunResult result_of(const Log& log) {
  const auto lacking = [&](const char* key) {
    return DataError(fmt::format("{}: has no {}, expected the log of a run", log.path, key));
  };
  const Record *begin = log.first("run_start"), *end = log.first("run_stop");
  if (!begin) throw lacking("run_start");
  RunResult run{.file = log.path.substr(log.path.rfind('/') + 1),
                .benchmark = log.text("submission_benchmark"),
                .seed = static_cast<int64_t>(log.number("seed").value_or(-1)),
                .batch = static_cast<int64_t>(log.number("global_batch_size").value_or(0)),
                .target = log.number("target_accuracy").value_or(0)};
  const Benchmark* rules = find_benchmark(run.benchmark, "");
  if (run.target == 0 && rules) run.target = rules->target;
  if (end) {
    const auto status = end->metadata.find("status");
    if (status != end->metadata.end() && status->is_string()) run.status = status->get<std::string>();
    run.minutes = (end->time_ms - begin->time_ms) / 60'000;
  }
  const double sequence = log.number("max_sequence_length").value_or(1);
  for (const Record& record : log.all("eval_accuracy")) {
    const auto samples = record.position("samples_count"), tokens = record.position("epoch_num");
    if (!record.is_number() || (!samples && !tokens)) continue;
    run.evaluations.push_back({samples ? *samples : *tokens / sequence, record.number()});
  }
  if (run.converged() && run.evaluations.empty()) throw lacking("eval_accuracy");
  return run;
}

std::optional<double> score_of(std::span<const RunResult> runs) {
  std::vector<double> minutes;
  for (const RunResult& run : runs) minutes.push_back(run.converged() ? run.minutes : HUGE_VAL);
  std::ranges::sort(minutes);
  if (minutes.size() < 3 || std::isinf(minutes[minutes.size() - 2])) return {};
  return olympic_mean(minutes);
}

Reference read_reference(const std::string& path) {
  const auto json = parse_strict_json(read_small_file(path, 1 << 20), path);
  const JsonReader reader(json, path);
  Reference reference{
      .benchmark = reader.text("benchmark"), .batch = reader.integer("batch"), .target = reader.number("target")};
  for (const auto& number : reader.array("samples"))
    reference.samples.push_back(number.is_number() ? number.get<double>() : 0);
  if (reference.samples.size() < 3 || std::ranges::min(reference.samples) <= 0)
    reader.refuse("samples", reader.array("samples").dump().substr(0, 60), "three numbers above 0 or more");
  return reference;
}

std::string reference_text(std::span<const RunResult> runs) {
  if (runs.size() < 3 || !all_converged(runs))
    throw ConfigError("--write-reference: expected three runs or more, all of which converged");
  nlohmann::ordered_json json{{"benchmark", runs[0].benchmark},
                              {"batch", runs[0].batch},
                              {"target", runs[0].target},
                              {"samples", samples_of(runs)}};
  return json.dump() + '\n';
}

std::vector<TextBlock> summary_blocks(std::span<const RunResult> runs, const std::optional<Reference>& reference) {
  TextBlock table{.title = fmt::format("{}, batches of {}", runs[0].benchmark, runs[0].batch)};
  table.column("run", 'l');
  for (const char* name : {"seed", "minutes", "samples", "loss", "status"}) table.column(name, 'r');
  for (const RunResult& run : runs)
    table.rows.push_back({run.file, fmt::to_string(run.seed), fmt::format("{:.3f}", run.minutes),
                          fmt::format("{:.0f}", run.samples()),
                          run.evaluations.empty() ? "-" : fmt::format("{:.5f}", run.evaluations.back().loss),
                          run.status.empty() ? "did not end" : run.status});
  std::vector<TextBlock> blocks{std::move(table), score_block(runs)};
  if (reference) {
    if (reference->benchmark != runs[0].benchmark || reference->batch != runs[0].batch ||
        reference->target != runs[0].target)
      throw DataError(fmt::format("the reference is of {} with batches of {} to {}, expected {} with {} to {}",
                                  reference->benchmark, reference->batch, reference->target, runs[0].benchmark,
                                  runs[0].batch, runs[0].target));
    blocks.push_back(test_block(runs, *reference));
  }
  return blocks;
}

std::string plot_evaluations(std::span<const RunResult> runs) {
  constexpr double kLeft = 60, kTop = 30, kWidth = 680, kHeight = 300;
  const double target = runs[0].target;
  double most = 0, low = target > 0 ? target : HUGE_VAL, high = 0;
  for (const RunResult& run : runs)
    for (const auto& [samples, loss] : run.evaluations)
      most = std::max(most, samples), low = std::min(low, loss), high = std::max(high, loss);
  const double margin = (high - low) * 0.05;
  Canvas canvas;
  Chart chart{canvas, kLeft, kTop, kWidth, kHeight, 0, most, low - margin, high + margin};
  chart.draw_axes("validation loss");
  canvas.text(kLeft + kWidth / 2, kTop + kHeight + 36, "soft mid", "samples");
  if (target > 0) {
    chart.draw_curve({{0, target}, {most, target}}, "one");
    canvas.text(kLeft + 6, chart.y_of(target) - 5, "soft", fmt::format("target {:g}", target));
  }
  for (const RunResult& run : runs) {
    std::vector<std::pair<double, double>> points;
    for (const auto& [samples, loss] : run.evaluations) points.emplace_back(samples, loss);
    if (points.empty()) continue;
    chart.draw_curve(points, "");
    const auto& [samples, loss] = points.back();
    canvas.bar(chart.x_of(samples) - 2.5, chart.y_of(loss) - 2.5, 5, 5, run.converged() ? "bar best" : "bar base",
               fmt::format("{}: {:.5f} after {:.0f} samples", run.file, loss, samples));
  }
  return canvas.finish(kLeft + kWidth + 20, kTop + kHeight + 50,
                       fmt::format("Validation loss over samples, {} runs", runs.size()));
}

}  // namespace trivet::mlperf
