#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <map>
#include <set>

#include "base/content_hash.h"
#include "tools/study/plan.h"

namespace trivet {
namespace {

// A pseudo-random string for `what`, the same on every machine.
std::string draw(const Study& study, int64_t repeat, std::string_view what) {
  return content_hash(fmt::format("{} {} {}", study.seed, repeat, what));
}

// Points that run between two runs of their baseline; if empty, only the baseline runs.
struct RoundBlock {
  size_t baseline;
  std::vector<size_t> points;
};

// Splits the points, in random order, into blocks of nearly equal size.
std::vector<RoundBlock> blocks_of(const Study& study, const Plan& plan, int64_t repeat, size_t baseline,
                                  std::vector<size_t> points) {
  std::map<std::string, size_t> shuffled;
  for (const size_t point : points) shuffled.emplace(draw(study, repeat, plan.points[point].id), point);
  const auto most = static_cast<size_t>(study.baseline_every);
  const size_t count = (points.size() + most - 1) / most;
  std::vector<RoundBlock> blocks(std::max<size_t>(count, 1), RoundBlock{baseline, {}});
  size_t n = 0;
  for (const auto& [number, point] : shuffled) blocks[n++ * count / points.size()].points.push_back(point);
  return blocks;
}

// A round's results so far.
struct Made {
  std::map<std::string, const RunRow*, std::less<>> failed;       // points with a failed run in any round
  std::map<std::string, int64_t, std::less<>> runs;               // by point: its runs in this round
  std::map<std::string, std::set<int64_t>, std::less<>> of_call;  // by point: the calls that made these runs

  // True if the point has a run in a call that also ran the baseline, or any run if the baseline failed.
  bool has(const std::string& id, const std::string& baseline) const {
    const auto own = of_call.find(id), other = of_call.find(baseline);
    if (own == of_call.end() || failed.contains(baseline)) return own != of_call.end();
    return other != of_call.end() &&
           std::ranges::any_of(own->second, [&](int64_t call) { return other->second.contains(call); });
  }
};
Made made_in(std::span<const RunRow> rows, int64_t repeat) {
  Made made;
  made.failed = failures_of(rows);
  for (const RunRow& row : rows) {
    if (row.repeat != repeat) continue;
    ++made.runs[row.point];
    made.of_call[row.point].insert(row.call);
  }
  return made;
}

std::vector<RoundBlock> remaining_blocks(const Study& study, const Plan& plan, const Made& made, int64_t repeat) {
  std::map<size_t, std::vector<size_t>> todo;  // by baseline
  for (size_t i = 0; i < plan.points.size(); ++i) {
    const std::string &id = plan.points[i].id, &baseline = plan.points[plan.baselines[i]].id;
    if (!made.failed.contains(id) && !made.has(id, baseline)) todo[plan.baselines[i]].push_back(i);
  }
  std::map<std::string, RoundBlock> shuffled;
  for (auto& [baseline, points] : todo) {
    std::erase(points, baseline);
    for (RoundBlock& block : blocks_of(study, plan, repeat, baseline, points))
      shuffled.emplace(draw(study, repeat, fmt::format("block {} {}", baseline, shuffled.size())), std::move(block));
  }
  std::vector<RoundBlock> blocks;
  for (auto& [number, block] : shuffled) blocks.push_back(std::move(block));
  return blocks;
}

}  // namespace

std::vector<PlannedRun> rest_of_round(const Study& study, const Plan& plan, std::span<const RunRow> rows,
                                      int64_t repeat) {
  Made made = made_in(rows, repeat);
  std::vector<PlannedRun> runs;
  const auto add = [&](size_t point) { runs.push_back({point, repeat, ++made.runs[plan.points[point].id]}); };
  for (const RoundBlock& block : remaining_blocks(study, plan, made, repeat)) {
    const bool baseline = !made.failed.contains(plan.points[block.baseline].id);
    if (baseline && (runs.empty() || runs.back().point != block.baseline)) add(block.baseline);
    for (const size_t point : block.points) add(point);
    if (baseline && !block.points.empty()) add(block.baseline);
  }
  return runs;
}

std::vector<PlannedRun> remaining_runs(const Study& study, const Plan& plan, std::span<const RunRow> rows,
                                       int64_t rounds) {
  std::vector<PlannedRun> runs;
  for (int64_t repeat = 1; repeat <= std::min(study.repeats, rounds); ++repeat)
    std::ranges::copy(rest_of_round(study, plan, rows, repeat), std::back_inserter(runs));
  return runs;
}

std::string folder_of(const Point& point, const PlannedRun& run) {
  return fmt::format("runs/{}-{}{}", point.id, run.repeat, run.copy > 1 ? fmt::format(".{}", run.copy) : "");
}

}  // namespace trivet
