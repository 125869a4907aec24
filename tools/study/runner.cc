#include "tools/study/runner.h"

#include <algorithm>
#include <deque>

#include "base/check.h"
#include "base/files.h"
#include "tools/study/summary.h"

namespace trivet {
namespace {

StudyProgress progress_of(const Plan& plan, const std::vector<RunRow>& rows, const RunRow& last, size_t point,
                          const std::deque<PlannedRun>& left, bool round_ended) {
  const int64_t done = std::ranges::count_if(
      rows, [&](const RunRow& row) { return std::ranges::count(plan.points, row.point, &Point::id) > 0; });
  const std::vector<double> seconds = run_seconds(plan, rows);
  double seconds_left = 0;
  for (const PlannedRun& run : left) seconds_left += seconds[run.point];
  return {.row = last,
          .point = point,
          .done = done,
          .total = done + static_cast<int64_t>(left.size()),
          .seconds_left = seconds_left,
          .round_ended = round_ended};
}

}  // namespace

std::string results_path(const Study& study) {
  make_folder(study.out);
  return study.out + "/results.jsonl";
}

StudyEnd run_study(const Study& study, const Plan& plan, std::vector<RunRow>& rows, const RunPoint& run,
                   const RunnerOptions& options) {
  AppendFile file(results_path(study), AppendFile::Start::keep, [](const std::string& why) { throw IoError(why); });
  const RunDirectory folder(study.out, "the study's out");
  const auto check_folder = [&] {
    if (const std::string problem = folder.problem(); !problem.empty()) throw ConfigError(problem);
  };
  const double begin = options.now_seconds();
  std::vector<RunRow> counted = options.retry_failed ? without_failures(rows) : rows;
  int64_t call = 1, rounds = rounds_wanted(study, plan, counted);
  for (const RunRow& row : rows) call = std::max(call, row.call + 1);
  // A round's order is fixed once, because the round must begin and end with baseline runs.
  std::deque<PlannedRun> left;
  const auto plan_rounds = [&] {
    const std::vector<PlannedRun> runs = remaining_runs(study, plan, counted, rounds);
    left.assign(runs.begin(), runs.end());
  };
  plan_rounds();
  for (bool first = true; !left.empty(); first = false) {
    if (options.stop_asked()) return StudyEnd::stopped;
    const PlannedRun next = left.front();
    const double end = options.now_seconds() - begin + run_seconds(plan, counted)[next.point];
    // An unknown duration (NaN) never exceeds the budget.
    if (!first && study.budget_minutes > 0 && end > 60 * study.budget_minutes) return StudyEnd::budget;

    const Point& point = plan.points[next.point];
    check_folder();  // before the run recreates the folder
    std::optional<RunRow> row = run(point, next);
    check_folder();
    if (!row) return StudyEnd::stopped;
    row->point = point.id;
    row->repeat = next.repeat;
    row->call = call;
    const std::vector<std::string> labels = labels_of(study, point.choice);
    for (size_t i = 0; i < labels.size(); ++i) row->levels.emplace_back(study.factors[i].name, labels[i]);
    file.append(to_json_line(*row));
    rows.push_back(*row);
    counted.push_back(std::move(*row));
    left.pop_front();
    // A failed point is not run again.
    if (rows.back().outcome != RunEnd::done)
      std::erase_if(left, [&](const PlannedRun& later) { return later.point == next.point; });
    const bool round_ended = left.empty() || left.front().repeat != next.repeat;
    if (left.empty()) rounds = rounds_wanted(study, plan, counted), plan_rounds();
    if (options.ended) options.ended(progress_of(plan, counted, rows.back(), next.point, left, round_ended));
  }
  return StudyEnd::complete;
}

RunDirectory lock_study(const Study& study) {
  make_folder(study.out);
  RunDirectory folder(study.out, "the study's out");
  if (!folder.try_lock()) throw IoError(study.out + ": is locked by another trivet study running in this folder");
  return folder;
}

}  // namespace trivet
