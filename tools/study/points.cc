#include <algorithm>
#include <fmt/format.h>

#include "base/check.h"
#include "tools/study/study.h"

namespace trivet {
namespace {

constexpr size_t kMostPoints = 10'000;

std::vector<Choice> grid(const Study& study) {
  size_t count = 1;
  for (const Factor& factor : study.factors) {
    count *= factor.levels.size();
    if (count > kMostPoints)
      throw ConfigError(
          fmt::format("{}: the grid has more than {} points; remove levels, or choose design "
                      "one_at_a_time",
                      study.path, kMostPoints));
  }
  std::vector<Choice> points;
  Choice choice(study.factors.size(), 0);
  for (size_t n = 0; n < count; ++n) {
    points.push_back(choice);
    for (size_t i = choice.size(); i-- > 0;) {
      if (++choice[i] < study.factors[i].levels.size()) break;
      choice[i] = 0;
    }
  }
  return points;
}

std::vector<Choice> one_at_a_time(const Study& study) {
  std::vector<Choice> points{study.baseline()};
  for (size_t i = 0; i < study.factors.size(); ++i)
    for (size_t level = 0; level < study.factors[i].levels.size(); ++level) {
      if (level == study.factors[i].baseline) continue;
      points.push_back(study.baseline());
      points.back()[i] = level;
    }
  return points;
}

std::vector<Choice> listed(const Study& study) {
  std::vector<Choice> points;
  if (std::ranges::count(study.list, study.baseline()) == 0) points.push_back(study.baseline());
  for (const Choice& choice : study.list)
    if (std::ranges::count(points, choice) == 0) points.push_back(choice);
  return points;
}

// `of` selects the factors.
template <class Of>
std::string describe(const Study& study, const Choice& choice, Of&& of) {
  std::string text;
  for (size_t i = 0; i < choice.size(); ++i) {
    const Factor& factor = study.factors[i];
    if (factor.levels.size() > 1 && of(factor))
      text += fmt::format("{}{}={}", text.empty() ? "" : ", ", factor.name, factor.levels[choice[i]].label);
  }
  return text;
}

}  // namespace

bool is_time_only(std::string_view key) {
  constexpr std::string_view kSingle[] = {
      "launcher",           "mpirun_arguments",       "srun_arguments",    "netlab.gbps",
      "netlab.delay_us",    "parallel.bucket_size",   "data.prefetch",     "train.trace",
      "train.log_interval", "train.flops_convention", "device.peak_tflops"};
  if (key.starts_with("overlap.tp_comm_overlap")) return false;
  return key.starts_with("overlap.") || key.starts_with("comm.") || std::ranges::count(kSingle, key) > 0;
}

bool is_better_high(std::string_view metric) {
  for (const std::string_view word : {"per_second", "tflops", "mfu", "overlap_ratio", "hidden"})
    if (metric.find(word) != std::string_view::npos) return true;
  return false;
}

std::vector<Choice> design_points(const Study& study) {
  std::vector<Choice> points = study.design == Design::grid            ? grid(study)
                               : study.design == Design::one_at_a_time ? one_at_a_time(study)
                                                                       : listed(study);
  for (const Choice& choice : study.predict)
    if (std::ranges::count(points, choice) == 0) points.push_back(choice);
  return points;
}

std::vector<std::string> labels_of(const Study& study, const Choice& choice) {
  std::vector<std::string> labels;
  for (size_t i = 0; i < choice.size(); ++i) labels.push_back(study.factors[i].levels[choice[i]].label);
  return labels;
}

std::string describe_choice(const Study& study, const Choice& choice) {
  const std::string text = describe(study, choice, [](const Factor&) { return true; });
  return text.empty() ? "the only point" : text;
}

std::string describe_conditions(const Study& study, const Choice& choice) {
  return describe(study, choice, [](const Factor& factor) { return factor.condition; });
}

std::string describe_chosen(const Study& study, const Choice& choice) {
  const std::string text = describe(study, choice, [](const Factor& factor) { return !factor.condition; });
  return text.empty() ? "the only point" : text;
}

}  // namespace trivet
