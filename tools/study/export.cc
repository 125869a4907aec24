#include "tools/study/export.h"

#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <set>

#include "base/files.h"
#include "base/text.h"
#include "engine/metrics/jsonl.h"

namespace trivet {
namespace {

// What all rows of a run have, by column.
std::vector<std::pair<std::string, std::string>> cells_of_run(const Study& study, const RunRow& run) {
  std::vector<std::pair<std::string, std::string>> cells{
      {"study", study.name},
      {"point", run.point},
      {"round", std::to_string(run.repeat)},
      {"call", std::to_string(run.call)},
      {"outcome", std::string(word_of(run.outcome))},
      {"reason", run.reason},
      {"started", run.started},
      {"run_seconds", fmt::format("{}", run.seconds)},
  };
  for (const std::string_view name : kProvenance) cells.emplace_back(name, provenance_value(run.provenance, name));
  cells.insert(cells.end(), run.levels.begin(), run.levels.end());  // last: a study may have had other factors before
  return cells;
}

}  // namespace

int64_t export_steps(const Study& study, const std::vector<RunRow>& runs, const std::string& path) {
  std::map<std::string, size_t> owners;  // a folder belongs to the last run that was made in it
  for (size_t i = 0; i < runs.size(); ++i) owners[runs[i].folder] = i;
  std::vector<std::string> head;
  std::set<std::string> known, metrics;
  std::vector<std::vector<StepNumbers>> steps(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [name, value] : cells_of_run(study, runs[i]))
      if (known.insert(name).second) head.push_back(name);
    const std::string file = study.out + "/" + runs[i].folder + "/metrics.jsonl";
    if (owners[runs[i].folder] == i && std::filesystem::exists(file))
      for_each_step(file, [&](StepNumbers numbers) {
        for (const auto& [name, value] : numbers) metrics.insert(name);
        steps[i].push_back(std::move(numbers));
      });
    if (steps[i].empty()) steps[i].emplace_back();
  }
  metrics.erase("step");
  head.insert(head.end(), {"step", "measured"});
  head.insert(head.end(), metrics.begin(), metrics.end());

  OutputFile file(path);
  file.write(csv_line(head));
  int64_t rows = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto begin = cells_of_run(study, runs[i]);
    for (size_t n = 0; n < steps[i].size(); ++n, ++rows) {
      std::map<std::string, std::string> cells(begin.begin(), begin.end());
      for (const auto& [name, value] : steps[i][n])
        if (std::isfinite(value)) cells[name] = fmt::format("{}", value);
      if (!steps[i][n].empty()) cells["measured"] = static_cast<int64_t>(n) < study.warmup_steps ? "no" : "yes";
      std::vector<std::string> row;
      for (const std::string& name : head) row.push_back(cells[name]);
      file.write(csv_line(row));
    }
  }
  file.commit();
  return rows;
}

}  // namespace trivet
