// The cost of a run in time, money and energy, if every step takes as long as predicted.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "base/text.h"
#include "engine/config/validate.h"
#include "engine/metrics/step_report.h"
#include "tools/plan/system.h"

namespace trivet {

struct RunCost {
  double tokens = 0;
  double seconds = 0;
  int ranks = 1;
  double step_seconds = 0;
  std::optional<double> price = {};  // per rank-hour, in any currency
  double power_watts = 0;            // per rank; 0: unknown

  double days() const { return seconds / 86'400; }
  double rank_hours() const { return seconds / 3'600 * ranks; }
  double step_money() const { return *price * ranks * step_seconds / 3'600; }
  double money() const { return *price * rank_hours(); }
  double energy_mwh() const { return power_watts * rank_hours() * 1e-6; }
};

// The run's number of tokens: `asked` if given, else derived from train.train_iters or train.train_samples. Throws
// ConfigError unless it is positive. config, layout: resolved.
double tokens_of_run(std::optional<double> asked, const Config& config, const Layout& layout);

RunCost cost_of_run(const StepReport& step, double tokens, std::optional<double> price, const System& system);

TextBlock describe(const RunCost& cost);
void add_json(const RunCost& cost, nlohmann::ordered_json& json);

}  // namespace trivet
