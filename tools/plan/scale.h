// Scale curves: one run on more and more ranks. The mesh grows on its data-parallel axis; t and p stay.
//
//   weak    the global batch grows with the ranks, from the run's on the first number of them
//   strong  the global batch stays
//
// Efficiency is tokens a second and rank over those of the curve's first legal point. The knee is the last point before
// the first whose efficiency is below 90 %.
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
  std::string refusal = {};  // why there is no prediction; "": there is
  int64_t global_batch = 0;
  Prediction prediction = {};
  double efficiency = 0;
  std::string choice = {};  // RunPlan::choice
};

struct ScaleCurve {
  static constexpr double kKnee = 0.9;

  Scaling scaling = Scaling::weak;
  std::vector<ScalePoint> points = {};  // in the order of their ranks
  std::optional<size_t> first = {}, knee = {};
  std::optional<size_t> beyond = {};  // the first point below kKnee

  bool legal() const { return first.has_value(); }  // any point
};

// ranks: at least one number, in their order. Throws ConfigError if the run on the first number has no global batch
// to grow from; the problems of other points are in them.
ScaleCurve scale_curve(const LoadedConfig& run, const std::vector<int>& ranks, const System& system,
                       Scaling scaling);

// The knee, and what grew most from the first point to the one beyond it (or to the last): a class of exposed
// communication, the bubble, the optimizer, ….
std::string knee_text(const ScaleCurve& curve);

std::vector<TextBlock> describe(const ScaleCurve& curve);
nlohmann::ordered_json json_of(const ScaleCurve& curve);
// SVG: tokens a second, actual and at the first point's efficiency, and efficiency; both over the ranks.
std::string picture_of(const std::vector<ScaleCurve>& curves);

}  // namespace trivet
