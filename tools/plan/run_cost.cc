#include "tools/plan/run_cost.h"

#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace trivet {

double tokens_of_run(std::optional<double> asked, const Config& config, const Layout& layout) {
  const double tokens = asked.value_or(samples_of_run(config, layout) * static_cast<double>(config.model.seq_length));
  if (!(tokens > 0))
    throw ConfigError(
        "--price: the run has no length, expected --tokens N, or train.train_iters or train.train_samples above 0");
  return tokens;
}

RunCost cost_of_run(const StepReport& step, double tokens, std::optional<double> price, const System& system) {
  return {.tokens = tokens,
          .seconds = tokens / step.tokens_per_second,
          .ranks = step.ranks,
          .step_seconds = step.step_seconds,
          .price = price,
          .power_watts = system.power_watts};
}

TextBlock describe(const RunCost& cost) {
  TextBlock block{
      .title = "run",
      .rows = {{"tokens", fmt::format("{:.6g}", cost.tokens)},
               {"time", fmt::format("{:.4g} days, {:.6g} hours of a rank", cost.days(), cost.rank_hours())}}};
  if (cost.price)
    block.rows.push_back({"money", fmt::format("{:.6g}, {:.4g} per step, at {:g} an hour of a rank", cost.money(),
                                               cost.step_money(), *cost.price)});
  if (cost.power_watts > 0)
    block.rows.push_back({"energy", fmt::format("{:.4g} MWh, at {:g} W per rank", cost.energy_mwh(), cost.power_watts)});
  return block;
}

void add_json(const RunCost& cost, nlohmann::ordered_json& json) {
  json["run_tokens"] = cost.tokens;
  json["run_days"] = cost.days();
  json["run_rank_hours"] = cost.rank_hours();
  if (cost.price) json["run_cost"] = cost.money(), json["step_cost"] = cost.step_money();
  if (cost.power_watts > 0) json["run_energy_mwh"] = cost.energy_mwh();
}

}  // namespace trivet
