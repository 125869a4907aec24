#include "tools/study/oversubscription.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>

#include "base/text.h"
#include "engine/config/config.h"

namespace trivet {
namespace {

// mpirun's ranks stay here where no argument names other hosts.
bool names_hosts(const std::string& argument) {
  return argument == "-H" || argument == "-f" || argument.find("-host") != std::string::npos ||
         argument.find("-machinefile") != std::string::npos;
}

}  // namespace

int compute_threads(const Config& config, const Launch& launch) {
  const bool here = launch.on_this_machine() ||
                    (launch.launcher == Launcher::mpirun && std::ranges::none_of(launch.arguments, names_hosts));
  const bool gpu = config.device.kind == DeviceKind::cuda;
  return !here ? 0 : launch.ranks * (gpu ? 1 : std::max(1, config.device.threads_per_rank));
}

std::string oversubscription_text(const Study& study, const Plan& plan, int cores) {
  const auto points =
      std::ranges::count_if(plan.points, [&](const Point& point) { return cores > 0 && point.threads > cores; });
  if (points == 0) return "";
  const Point& most = *std::ranges::max_element(plan.points, {}, &Point::threads);
  return fmt::format(
      "{} of {} compute with more threads than this machine has cores ({}; most: {} threads of {}). Ranks take turns: "
      "exposed time and waiting then measure the scheduler. {}.",
      points, counted(static_cast<int64_t>(plan.points.size()), "point"), cores, most.threads,
      counted(most.launch.ranks, "rank"),
      study.allow_oversubscription
          ? "allow_oversubscription: true draws conclusions all the same"
          : "Nothing is concluded from them: lower ranks or device.threads_per_rank, or say allow_oversubscription: "
            "true");
}

bool oversubscribed(const RunRow& row) {
  const auto number = [&](const char* name) { return std::atoi(provenance_value(row.provenance, name).c_str()); };
  return number("cores") > 0 && number("threads") > number("cores");
}

void refuse(Verdict& verdict) {
  if (verdict == Verdict::better || verdict == Verdict::worse || verdict == Verdict::within_noise)
    verdict = Verdict::refused;
}

void refuse_oversubscribed(const Study& study, const Plan& plan, const std::vector<RunRow>& rows, Summary& summary) {
  for (const RunRow& row : rows)
    for (size_t i = 0; i < plan.points.size(); ++i)
      summary.points[i].oversubscribed |=
          row.point == plan.points[i].id && row.outcome == RunEnd::done && oversubscribed(row);
  if (study.allow_oversubscription) return;
  for (size_t i = 0; i < plan.points.size(); ++i)
    if (summary.points[i].oversubscribed || summary.points[plan.baselines[i]].oversubscribed)
      refuse(summary.points[i].verdict);
  for (Conclusion& conclusion : summary.conclusions) {
    conclusion.refused =
        std::ranges::any_of(conclusion.points, [&](size_t i) { return summary.points[i].oversubscribed; });
    if (!conclusion.refused) continue;
    conclusion.best.clear();
    for (std::vector<Effect>& levels : conclusion.effects)
      for (Effect& effect : levels) refuse(effect.verdict);
  }
}

}  // namespace trivet
