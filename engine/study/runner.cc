#include "engine/study/runner.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include "base/files.h"
#include "kernels/base/check.h"

namespace trivet {
namespace {

double seconds_of(const Study& study, const Plan& plan, const std::vector<RunRow>& rows,
                  std::span<const PlannedRun> runs) {
  const bool measured = std::ranges::any_of(rows, [](const RunRow& row) { return row.outcome == RunEnd::done; });
  if (!measured) return std::nan("");
  const CostPrediction cost = predict_cost(study, plan, rows, std::nan(""));
  double sum = 0;
  for (const PlannedRun& run : runs) sum += cost.seconds[run.point];
  return sum;
}

}  // namespace

std::string results_path(const Study& study) {
  make_folder(study.out);
  return study.out + "/results.jsonl";
}

StudyEnd run_study(const Study& study, const Plan& plan, std::vector<RunRow>& rows, const RunPoint& run,
                   const RunnerOptions& options) {
  AppendFile file(results_path(study), AppendFile::Start::keep, {});
  const double begin = options.now_seconds();
  const auto total = static_cast<int64_t>(plan.points.size()) * study.repeats;
  std::vector<RunRow> counted = options.retry_failed ? without_failures(rows) : rows;
  for (int64_t made = 0;; ++made) {
    const std::vector<PlannedRun> runs = remaining_runs(study, plan, counted);
    if (runs.empty()) return StudyEnd::complete;
    if (options.stop_asked()) return StudyEnd::stopped;
    if (made == options.most_runs) return StudyEnd::limit;
    const double end = options.now_seconds() - begin + seconds_of(study, plan, counted, std::span(runs).first(1));
    // Unknown is not above the budget.
    if (made > 0 && study.budget_minutes > 0 && end > 60 * study.budget_minutes) return StudyEnd::budget;

    const PlannedRun next = runs.front();
    const Point& point = plan.points[next.point];
    std::optional<RunRow> row = run(point, next.repeat);
    if (!row) return StudyEnd::stopped;
    row->point = point.id;
    row->repeat = next.repeat;
    const std::vector<std::string> labels = labels_of(study, point.choice);
    for (size_t i = 0; i < labels.size(); ++i) row->levels.emplace_back(study.factors[i].name, labels[i]);
    if (!file.append(to_json_line(*row)))
      throw IoError(fmt::format("{}: the result of a run cannot be written", file.path()));
    rows.push_back(*row);
    counted.push_back(std::move(*row));

    if (!options.ended) continue;
    const std::vector<PlannedRun> rest = remaining_runs(study, plan, counted);
    options.ended({.row = rows.back(),
                   .point = next.point,
                   .done = total - static_cast<int64_t>(rest.size()),
                   .total = total,
                   .seconds_left = seconds_of(study, plan, counted, rest),
                   .round_ended = rest.empty() || rest.front().repeat != next.repeat});
  }
}

FileDescriptor lock_study(const Study& study) {
  make_folder(study.out);
  const std::string path = study.out + "/lock";
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (fd < 0) throw IoError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  // A file system without locks does not stop the study.
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw IoError(path + ": is held by another trivet study that runs in this folder");
  return fd;
}

}  // namespace trivet
