// Scaling curves: one run on increasing numbers of ranks. Only the mesh's data-parallel axis grows; t and p are fixed.
//
//   weak    the global batch grows with the number of ranks, starting from the run's own batch on the fewest ranks
//   strong  the global batch is constant
//
// Efficiency is tokens per second per rank, relative to the curve's first legal point. The knee is the last point
// before efficiency first drops below 90 %.
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
  std::string refusal = {};  // why no prediction exists; "" if one does
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
  std::optional<size_t> beyond = {};  // the first point with efficiency below kKnee

  bool legal() const { return first.has_value(); }  // true if any point is legal
};

// ranks: rank counts, at least one, in ascending order. Throws ConfigError if the run on the first count has no global
// batch to start from; problems of individual points are reported in ScalePoint::refusal.
ScaleCurve scale_curve(const LoadedConfig& run, const std::vector<int>& ranks, const System& system, Scaling scaling);

// Sets the points' efficiencies, and `first`, `knee` and `beyond`.
void find_knee(ScaleCurve& curve);

// Names the knee, and the overhead that grew the most from the first point to the one beyond the knee (or the last): a
// class of exposed communication, the bubble, the optimizer, ….
std::string knee_text(const ScaleCurve& curve);

std::vector<TextBlock> describe(const ScaleCurve& curve);
nlohmann::ordered_json json_of(const ScaleCurve& curve);
// An SVG of tokens/s (predicted, and at the first point's efficiency) and of efficiency, both over the number of ranks.
std::string picture_of(const std::vector<ScaleCurve>& curves);

}  // namespace trivet
