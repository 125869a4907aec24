#include "tools/plan/rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fmt/ranges.h>
#include <optional>

#include "base/files.h"
#include "base/scalar.h"
#include "base/statistics.h"
#include "base/text.h"
#include "engine/config/load.h"
#include "engine/metrics/accounting.h"
#include "engine/metrics/jsonl.h"
#include "engine/train/run.h"

namespace trivet {
namespace {

constexpr std::array<std::string_view, 3> kMeasured = {"step_seconds", "tokens_per_second_per_rank",
                                                       "model_tflops_per_rank"};

[[noreturn]] void bad(const std::string& place, std::string_view column, std::string_view problem) {
  throw ConfigError(fmt::format("{}: {}: {}", place, column, problem));
}

double positive(const std::string& place, std::string_view column, std::string_view text) {
  const auto number = parse_number(text);
  if (!number || *number <= 0) bad(place, column, fmt::format("found {}, expected a number above 0", quote(text)));
  return *number;
}

double seconds_of(std::string_view column, double value, const Config& config, int ranks) {
  const int64_t batch = *config.batch.global_batch_size;
  if (column == "step_seconds") return value;
  if (column == "tokens_per_second_per_rank")
    return static_cast<double>(batch * config.model.seq_length) / (value * ranks);
  return flops_per_step(model_spec_of(config.model), batch, config.train.flops_convention) / (value * 1e12 * ranks);
}

std::vector<std::string> cells_of(const std::string& place, const std::string& line) {
  std::vector<std::string> cells = csv_cells(line);
  if (cells.empty()) bad(place, "cells", "a quote is not closed in its line");
  return cells;
}

std::vector<std::string> columns_of(const std::string& place, const std::string& line) {
  const std::vector<std::string> names = cells_of(place, line);
  const auto has = [&](std::string_view name) { return std::ranges::count(names, name) > 0; };
  for (const std::string& name : names) {
    const bool key = name.find('.') != std::string_view::npos;
    if (!key && name != "run" && name != "ranks" && !std::ranges::count(kMeasured, name))
      bad(place, "columns",
          fmt::format("found {}, expected run, ranks, SECTION.KEY, system.KEY, {}", quote(name),
                      fmt::join(kMeasured, ", ")));
    if (std::ranges::count(names, name) > 1) bad(place, "columns", fmt::format("{} comes twice", name));
  }
  for (const std::string_view name : {"run", "ranks"})
    if (!has(name)) bad(place, "columns", fmt::format("{} is missing", name));
  if (std::ranges::count_if(kMeasured, has) != 1)
    bad(place, "columns",
        fmt::format("found {} of {}, expected one", std::ranges::count_if(kMeasured, has), fmt::join(kMeasured, ", ")));
  return names;
}

MeasuredRow row_of(const std::string& place, const std::string& folder, const std::vector<std::string>& names,
                   const std::string& line) {
  const std::vector<std::string> cells = cells_of(place, line);
  if (cells.size() != names.size())
    bad(place, "cells", fmt::format("found {}, expected {}, one for each column", cells.size(), names.size()));
  MeasuredRow row{.place = place};
  std::string run, measured;
  double value = 0;
  int ranks = 0;
  std::vector<std::string> sets;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string &name = names[i], &cell = cells[i];
    if (name == "run") {
      run = (std::filesystem::path(folder) / cell).string();
    } else if (name == "ranks") {
      const auto number = parse_integer(cell);
      if (!number || *number < 1 || *number > kMostRanks)
        bad(place, name, fmt::format("found {}, expected an integer from 1 to {}", quote(cell), kMostRanks));
      ranks = static_cast<int>(*number);
    } else if (std::ranges::count(kMeasured, name)) {
      value = positive(place, measured = name, cell);
    } else if (!cell.empty()) {
      const bool of_system = name.starts_with("system.");
      (of_system ? row.system_sets : sets).push_back((of_system ? name.substr(7) : name) + '=' + cell);
    }
  }
  try {
    LoadedConfig loaded = load_untrained(run, sets);
    row.layout = resolve(loaded, {.world_size = ranks});
    row.config = loaded.config;
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", place, error.what()));
  }
  row.step_seconds = seconds_of(measured, value, row.config, ranks);
  return row;
}

MeasuredRow row_of_run(const std::string& path) {
  constexpr size_t kWarmUp = 2;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const auto config = std::filesystem::path(folder) / "config.resolved.yaml";
  if (!std::filesystem::exists(config))
    bad(path, "run", fmt::format("there is no {}; expected it next to the run's metrics", config.string()));
  LoadedConfig loaded = load_untrained(config.string());
  std::vector<double> seconds, flops_per_rank;
  const std::string problem = for_each_step(path, [&](const StepNumbers& numbers) {
    seconds.push_back(numbers.at("step_seconds"));
    flops_per_rank.push_back(1e12 * numbers.at("model_tflops_per_rank") * seconds.back());
  });
  if (!problem.empty()) bad(path, "steps", problem);
  if (seconds.size() <= kWarmUp)
    bad(path, "steps", fmt::format("found {}, expected at least {}", seconds.size(), kWarmUp + 1));
  const ModelSpec model = model_spec_of(loaded.config.model);
  const int64_t batch = loaded.config.batch.global_batch_size.value_or(0);
  const double flops = flops_per_step(model, batch, loaded.config.train.flops_convention);
  const int ranks = static_cast<int>(std::lround(flops / median(flops_per_rank)));
  MeasuredRow row{.place = path};
  row.layout = resolve(loaded, {.world_size = ranks});
  row.config = loaded.config;
  row.step_seconds = median({seconds.begin() + kWarmUp, seconds.end()});
  return row;
}

}  // namespace

std::vector<MeasuredRow> read_rows(const std::string& path) {
  if (path.ends_with(".jsonl")) return {row_of_run(path)};
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::vector<std::string> names;
  std::vector<MeasuredRow> rows;
  for_each_csv_line(path, [&](const std::string& line, const std::string& place) {
    if (names.empty()) names = columns_of(place, line);
    else rows.push_back(row_of(place, folder, names, line));
  });
  if (rows.empty()) bad(path, "rows", "found none, expected a line with the column names and one for each run");
  return rows;
}

}  // namespace trivet
