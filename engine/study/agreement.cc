#include <cmath>
#include <fmt/format.h>
#include <map>

#include "engine/study/points.h"
#include "engine/study/summary.h"

namespace trivet {
namespace {

struct Reference {
  const RunRow* row;
  std::string what;
};

// The first step at which two runs differ by more than they may; "": none.
std::string difference(const std::vector<double>& losses, const std::vector<double>& expected, double tolerance) {
  if (losses.size() != expected.size()) return fmt::format("{} steps against {}", losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    const double apart = std::abs(losses[i] - expected[i]);
    if (tolerance == 0 ? losses[i] != expected[i] : !(apart <= tolerance * std::abs(expected[i])))
      return fmt::format("the loss of step {} is {}, but {} (relative difference {:.2g})", i + 1, losses[i],
                         expected[i], apart / std::abs(expected[i]));
  }
  return "";
}

}  // namespace

std::vector<std::string> find_disagreements(const Study& study, const Plan& plan, const std::vector<RunRow>& rows) {
  std::vector<std::string> found(plan.points.size());
  if (!study.check_agreement) return found;
  std::map<std::string, Reference> references;  // by Point::numbers
  for (size_t i = 0; i < plan.points.size(); ++i)
    for (int64_t repeat = 1; repeat <= study.repeats; ++repeat) {
      const RunRow* row = find_row(rows, plan.points[i].id, repeat);
      if (!row || row->outcome != RunEnd::done) continue;
      const std::string what = fmt::format("repeat {} of {}", repeat, describe_choice(study, plan.points[i].choice));
      const auto [reference, first] = references.try_emplace(plan.points[i].numbers, Reference{row, what});
      if (first || !found[i].empty()) continue;
      const std::string text = difference(row->losses, reference->second.row->losses, study.tolerance);
      if (!text.empty()) found[i] = fmt::format("repeat {}: {} in {}", repeat, text, reference->second.what);
    }
  return found;
}

}  // namespace trivet
