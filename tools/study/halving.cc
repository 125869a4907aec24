#include "tools/study/halving.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <set>

#include "base/text.h"
#include "tools/study/summary.h"

namespace trivet {
namespace {

bool has_ended(const Study& study, const Plan& plan, const std::vector<RunRow>& rows, const Rung& rung) {
  int64_t round = 1;
  while (round <= rung.rounds && rest_of_round(study, plan, rows, round, rung.points).empty()) ++round;
  return round > rung.rounds;
}

// The points of a rung that are in the next one, in the order of the plan.
std::vector<size_t> survivors(const Study& study, const Plan& plan, const std::vector<RunRow>& rows, const Rung& rung) {
  Study so_far = study;
  so_far.design = Design::grid;
  so_far.repeats = rung.rounds;
  const Summary summary = summarize(so_far, plan, rows);
  std::set<size_t> next;
  for (const Conclusion& conclusion : summary.conclusions) {
    std::vector<size_t> running;
    for (const size_t point : rung.points) {
      if (std::ranges::count(conclusion.points, point) == 0) continue;
      next.insert(plan.baselines[point]);
      if (summary.points[point].failure.empty() && summary.points[point].adjusted) running.push_back(point);
    }
    std::ranges::stable_sort(running, {}, [&](size_t point) {
      return (is_better_high(study.metric) ? -1 : 1) * *summary.points[point].adjusted;
    });
    for (size_t i = 0; i < running.size(); ++i)
      if (i < (running.size() + 1) / 2 || std::ranges::count(conclusion.best, running[i]) > 0) next.insert(running[i]);
  }
  return {next.begin(), next.end()};
}

}  // namespace

std::vector<Rung> halving_rungs(const Study& study, const Plan& plan, const std::vector<RunRow>& rows) {
  std::vector<size_t> all(plan.points.size());
  std::iota(all.begin(), all.end(), size_t{0});
  if (study.design != Design::halving) return {{study.repeats, all}};
  std::vector<Rung> rungs{{std::min(kFewestRounds, study.repeats), all}};
  while (rungs.back().rounds < study.repeats && has_ended(study, plan, rows, rungs.back()))
    rungs.push_back({std::min(2 * rungs.back().rounds, study.repeats), survivors(study, plan, rows, rungs.back())});
  return rungs;
}

std::string halving_text(const std::vector<Rung>& rungs) {
  std::string text = "halving: ";
  for (size_t i = 0; i < rungs.size(); ++i)
    text += fmt::format("{}{} up to round {}", i == 0 ? "" : ", ",
                        counted(static_cast<int64_t>(rungs[i].points.size()), "point"), rungs[i].rounds);
  return text;
}

}  // namespace trivet
