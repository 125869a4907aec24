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

int64_t export_steps(const Study& study, const std::vector<RunRow>& runs, const std::string& path) {
  using Cells = std::map<std::string, std::string>;  // by column
  std::vector<Cells> rows;
  std::vector<std::string> head{"study", "point", "round", "call", "outcome", "reason", "started", "run_seconds"};
  head.insert(head.end(), std::begin(kProvenance), std::end(kProvenance));
  std::set<std::string> metrics;
  std::map<std::string, const RunRow*> owners;  // a folder belongs to the last run that wrote to it
  for (const RunRow& run : runs) owners[run.folder] = &run;
  for (const RunRow& run : runs) {
    Cells of_run{{"study", study.name},
                 {"point", run.point},
                 {"round", std::to_string(run.repeat)},
                 {"call", std::to_string(run.call)},
                 {"outcome", std::string(word_of(run.outcome))},
                 {"reason", run.reason},
                 {"started", run.started},
                 {"run_seconds", fmt::format("{}", run.seconds)}};
    of_run.insert(run.provenance.begin(), run.provenance.end());
    for (const auto& [factor, label] : run.levels) {  // the study may have had other factors at the time of this run
      if (std::ranges::count(head, factor) == 0) head.push_back(factor);
      of_run.emplace(factor, label);
    }
    int64_t steps = 0;
    const std::string file = study.out + "/" + run.folder + "/metrics.jsonl";
    if (owners[run.folder] == &run && std::filesystem::exists(file))
      for_each_step(file, [&](const StepNumbers& numbers) {
        Cells& row = rows.emplace_back(of_run);
        row["measured"] = ++steps <= study.warmup_steps ? "no" : "yes";
        for (const auto& [name, value] : numbers) {
          metrics.insert(name);
          if (std::isfinite(value)) row[name] = fmt::format("{}", value);
        }
      });
    if (steps == 0) rows.push_back(std::move(of_run));
  }
  metrics.erase("step");
  head.insert(head.end(), {"step", "measured"});
  head.insert(head.end(), metrics.begin(), metrics.end());

  OutputFile file(path);
  file.write(csv_line(head));
  for (Cells& row : rows) {
    std::vector<std::string> cells;
    for (const std::string& name : head) cells.push_back(row[name]);
    file.write(csv_line(cells));
  }
  file.commit();
  return std::ssize(rows);
}

}  // namespace trivet
