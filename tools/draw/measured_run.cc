#include "tools/draw/measured_run.h"

#include <algorithm>
#include <fmt/format.h>

#include "base/statistics.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/metrics/trace_file.h"

namespace trivet {

MeasuredRun read_measured_run(const std::string& run_dir, std::optional<int64_t> step) {
  const std::string trace = trace_of_run(run_dir);
  LoadedConfig loaded = load_config(run_dir + "/config.resolved.yaml");
  const Layout layout = resolve(loaded, {.world_size = ranks_of_trace(trace)});

  MeasuredRun run;
  run.schedule = layout.schedule;
  run.steps = read_measured_steps(trace, run.schedule);
  if (run.steps.size() > 1 && run.steps.front().step == 1) run.steps.erase(run.steps.begin());
  run.costs = measured_costs(run.schedule, run.steps, !loaded.config.overlap.overlap_p2p_comm);

  auto shown = run.steps.begin();
  if (step) {
    shown = std::find_if(run.steps.begin(), run.steps.end(), [&](const MeasuredStep& s) { return s.step == *step; });
    if (shown == run.steps.end())
      throw ConfigError(fmt::format("{} has the steps {} to {}, but step {} is asked for", trace,
                                    run.steps.front().step, run.steps.back().step, *step));
  } else {
    std::vector<std::pair<double, int64_t>> makespans;
    for (const MeasuredStep& s : run.steps)
      makespans.emplace_back(bubble_of(s.timeline).makespan, static_cast<int64_t>(makespans.size()));
    shown += upper_median(makespans).second;
  }
  run.measured = shown->timeline;
  run.measured.title = fmt::format("{} measured: p = {}, m = {}, step {} of {}", run.schedule.kind, run.schedule.p,
                                   run.schedule.m, shown->step, run_dir);
  run.simulated = simulate(run.schedule, run.costs);
  run.simulated.title =
      fmt::format("{} simulated with the costs of {} measured steps", run.schedule.kind, run.steps.size());
  return run;
}

}  // namespace trivet
