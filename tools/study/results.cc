#include "tools/study/results.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <iterator>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/statistics.h"
#include "engine/metrics/jsonl.h"

namespace trivet {
namespace {

using Json = nlohmann::ordered_json;

// True for a step's numbers in metrics.jsonl that are mere counters.
bool is_counter(std::string_view key) { return key == "step" || key == "consumed_samples" || key == "consumed_tokens"; }

RunRow row_of(const Json& json) {
  RunRow row;
  row.point = json.at("point").get<std::string>();
  row.repeat = json.at("repeat").get<int64_t>();
  row.call = json.at("call").get<int64_t>();
  for (const auto& [factor, label] : json.at("levels").items())
    row.levels.emplace_back(factor, label.get<std::string>());
  const auto outcome = parse_word<RunEnd>(json.at("outcome").get<std::string>());
  if (!outcome) throw DataError("unknown outcome " + json.at("outcome").dump());
  row.outcome = *outcome;
  row.reason = json.at("reason").get<std::string>();
  row.exit_code = json.at("exit_code").get<int>();
  row.started = json.at("started").get<std::string>();
  row.seconds = json.at("seconds").get<double>();
  row.metrics = json.at("metrics").get<std::map<std::string, double>>();
  row.losses = json.at("losses").get<std::vector<double>>();
  row.folder = json.at("folder").get<std::string>();
  row.command = json.at("command").get<std::string>();
  row.provenance = json.at("provenance").get<Provenance>();
  return row;
}

}  // namespace

std::string to_json_line(const RunRow& row) {
  Json levels = Json::object();
  for (const auto& [factor, label] : row.levels) levels[factor] = label;
  const Json json = {{"point", row.point},
                     {"repeat", row.repeat},
                     {"call", row.call},
                     {"levels", levels},
                     {"outcome", word_of(row.outcome)},
                     {"reason", row.reason},
                     {"exit_code", row.exit_code},
                     {"started", row.started},
                     {"seconds", row.seconds},
                     {"metrics", row.metrics},
                     {"losses", row.losses},
                     {"folder", row.folder},
                     {"command", row.command},
                     {"provenance", row.provenance}};
  // A failing program's output need not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

std::vector<RunRow> read_results(const std::string& path) {
  std::vector<RunRow> rows;
  if (!std::filesystem::exists(path)) return rows;
  for_each_line(path, [&](const std::string& line, int64_t number) {
    try {
      rows.push_back(row_of(parse_json<Json>(line)));
    } catch (const std::exception& error) {
      throw DataError(fmt::format("{}:{}: is not a result of a study: {}", path, number, json_problem(error)));
    }
  });
  return rows;
}

namespace {

// By point and repeat: the last row.
std::map<std::pair<std::string_view, int64_t>, const RunRow*> last_rows(std::span<const RunRow> rows) {
  std::map<std::pair<std::string_view, int64_t>, const RunRow*> last;
  for (const RunRow& row : rows) last[{row.point, row.repeat}] = &row;
  return last;
}

}  // namespace

std::map<std::string, const RunRow*, std::less<>> failures_of(std::span<const RunRow> rows) {
  std::map<std::string, const RunRow*, std::less<>> failures;
  if (std::ranges::all_of(rows, [](const RunRow& row) { return row.outcome == RunEnd::done; })) return failures;
  for (const auto& [run, row] : last_rows(rows))
    if (row->outcome != RunEnd::done) failures[row->point] = row;
  return failures;
}

std::vector<RunRow> without_failures(const std::vector<RunRow>& rows) {
  const auto last = last_rows(rows);
  std::vector<RunRow> done;
  for (const RunRow& row : rows)
    if (row.outcome == RunEnd::done && last.at({row.point, row.repeat})->outcome == RunEnd::done) done.push_back(row);
  return done;
}

std::string read_metrics(const std::string& path, int64_t steps, int64_t warmup_steps, RunRow& row) {
  std::map<std::string, std::vector<double>> values;
  const auto step = [&](const StepNumbers& numbers) {
    row.losses.push_back(numbers.at("loss"));
    if (static_cast<int64_t>(row.losses.size()) <= warmup_steps) return;
    for (const auto& [key, value] : numbers)
      if (!is_counter(key) && !std::isnan(value)) values[key].push_back(value);
  };
  const auto event = [&](const Json& record) {
    if (const double loss = number_in(record, "validation_loss"); !std::isnan(loss))
      row.metrics["validation_loss"] = loss;
  };
  std::string problem = for_each_step(path, step, event);
  for (auto& [key, numbers] : values) row.metrics[key] = median(std::move(numbers));
  const auto found = static_cast<int64_t>(row.losses.size());
  if (problem.empty() && found != steps) problem = fmt::format("metrics.jsonl has {} of {} steps", found, steps);
  for (int64_t i = 0; i < found && problem.empty(); ++i)
    if (!std::isfinite(row.losses[static_cast<size_t>(i)])) problem = fmt::format("step {} has no finite loss", i + 1);
  if (!problem.empty()) row.losses.clear(), row.metrics.clear();
  return problem;
}

std::vector<std::string> run_metrics() {
  std::vector<std::string> names = step_metric_names();
  std::erase_if(names, is_counter);
  names.insert(names.end(), {"memory_bytes", "peak_rss_bytes", "validation_loss"});
  return names;
}

}  // namespace trivet
