// Scaling curves: one run on increasing numbers of ranks. The mesh grows along its data-parallel axis; t and p do not.
//
//   weak    the global batch grows with the ranks; on the smallest number of ranks it is the run's
//   strong  the global batch is constant
//
// Efficiency is tokens per second and rank, relative to the curve's first legal point. The knee is the last point
// before the first whose efficiency is below 90 %.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "tools/plan/planned_run.h"

namespace trivet {

enum class Scaling { weak, strong };
constexpr auto words_of(Scaling) { return word_list("weak", "strong"); }

struct ScalePoint {
  int ranks = 0;
  std::string refusal = {};  // why there is no prediction; "": there is one
  int64_t global_batch = 0;
  Prediction prediction = {};
  double efficiency = 0;
  std::string choice = {};  // RunPlan::choice
};

struct ScaleCurve {
  static constexpr double kKnee = 0.9;

  Scaling scaling = Scaling::weak;
  std::vector<ScalePoint> points = {};  // in ascending order of ranks
  std::optional<size_t> first = {}, knee = {};
  std::optional<size_t> beyond = {};  // the first point below kKnee

  bool legal() const { return first.has_value(); }  // true if any point is
};

// ranks: at least one number, in ascending order. Throws ConfigError if the run on the first number has no global batch
// to grow from; the problems of points are in ScalePoint::refusal.
ScaleCurve scale_curve(const LoadedConfig& run, const std::vector<int>& ranks, const System& system,
                       Scaling scaling);

// Names the knee, and the overhead that grew most from the first point to the one beyond the knee (or to the last): a
// class of exposed communication, the bubble, the optimizer, ….
std::string knee_text(const ScaleCurve& curve);

std::vector<TextBlock> describe(const ScaleCurve& curve);
nlohmann::ordered_json json_of(const ScaleCurve& curve);
// An SVG of tokens/s (predicted, and at the first point's efficiency) and of efficiency, both over the ranks.
std::string picture_of(const std::vector<ScaleCurve>& curves);

}  // namespace trivet
