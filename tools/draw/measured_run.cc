#include "tools/draw/measured_run.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/metrics/trace_file.h"
#include "tools/draw/step_timeline.h"

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

  std::map<int64_t, double> makespans;
  for (const MeasuredStep& s : run.steps) makespans[s.step] = bubble_of(s.timeline).makespan;
  const auto shown = std::ranges::find(run.steps, choose_step(trace, makespans, step), &MeasuredStep::step);
  run.measured = shown->timeline;
  run.measured.title = fmt::format("{} measured: p = {}, m = {}, step {} of {}", run.schedule.kind, run.schedule.p,
                                   run.schedule.m, shown->step, run_dir);
  run.simulated = simulate(run.schedule, run.costs);
  run.simulated.title =
      fmt::format("{} simulated with the costs of {} measured steps", run.schedule.kind, run.steps.size());
  return run;
}

}  // namespace trivet
