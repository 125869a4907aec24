#include "tools/plan/calibrate.h"

#include <Eigen/Dense>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <thread>

#include "base/parallel_for.h"
#include "base/statistics.h"
#include "tools/plan/predict.h"

namespace trivet {
namespace {

size_t threads() { return std::max(1u, std::thread::hardware_concurrency()); }

std::string file_of(const MeasuredRow& row) { return row.place.substr(0, row.place.rfind(':')); }

bool gives(const MeasuredRow& row, const SystemKey& key) {
  return std::ranges::any_of(row.system_sets,
                             [&](const std::string& set) { return set.starts_with(std::string(key.name) + '='); });
}

}  // namespace

MeasuredRuns::MeasuredRuns(std::vector<MeasuredRow> rows, const std::string& spec,
                           const std::vector<std::string>& overrides, const Progress& progress)
    : rows_(std::move(rows)), systems_(rows_.size()), rehearsals_(rows_.size()) {
  std::atomic<size_t> done = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    std::vector<std::string> sets = overrides;
    sets.insert(sets.end(), rows_[i].system_sets.begin(), rows_[i].system_sets.end());
    try {
      systems_[i] = load_system(spec, sets);
    } catch (const ConfigError& error) {
      throw rows_[i].system_sets.empty() ? error : ConfigError(fmt::format("{}: {}", rows_[i].place, error.what()));
    }
  }
  parallel_for(rows_.size(), threads(), [&](size_t i) {
    rehearsals_[i] = rehearse_on(rows_[i].config, rows_[i].layout, systems_[i]);
    if (progress) progress(++done, rows_.size());
  });
}

std::vector<double> MeasuredRuns::predict(std::span<const size_t> which, std::span<const SystemKey* const> keys,
                                          std::span<const double> values) const {
  std::vector<double> seconds(which.size());
  parallel_for(which.size(), threads(), [&](size_t i) {
    const size_t row = which[i];
    System system = systems_[row];
    for (size_t k = 0; k < keys.size(); ++k)
      if (!gives(rows_[row], *keys[k])) set_value(system, *keys[k], values[k]);
    const Rehearsal& rehearsal = rehearsals_[row];
    seconds[i] = predict_step_seconds(rehearsal, *costs_of(rows_[row].config, rows_[row].layout, system));
  });
  return seconds;
}

Errors errors_of(const MeasuredRuns& runs, std::span<const size_t> which, std::span<const double> predicted) {
  Errors errors{.rows = which.size()};
  std::vector<double> all;
  for (size_t i = 0; i < which.size(); ++i) {
    const double error = predicted[i] / runs.rows()[which[i]].step_seconds - 1;
    all.push_back(std::abs(error));
    errors.bias += error / static_cast<double>(which.size());
    errors.mean += std::abs(error) / static_cast<double>(which.size());
    errors.most = std::max(errors.most, std::abs(error));
  }
  errors.median = median(all);
  return errors;
}

std::vector<double> fit(const MeasuredRuns& runs, std::span<const size_t> which, std::span<const SystemKey* const> keys,
                        std::vector<double> values, const FitOptions& options) {
  using Eigen::VectorXd, Eigen::MatrixXd;
  const auto n = static_cast<Eigen::Index>(keys.size()), rows = static_cast<Eigen::Index>(which.size());
  std::map<std::string, double> rows_of_file;
  for (const size_t i : which) ++rows_of_file[file_of(runs.rows()[i])];
  VectorXd weights(rows), measured(rows);
  for (Eigen::Index i = 0; i < rows; ++i) {
    const MeasuredRow& row = runs.rows()[which[static_cast<size_t>(i)]];
    weights[i] = 1 / rows_of_file[file_of(row)];
    measured[i] = row.step_seconds;
  }
  const auto residuals = [&](std::span<const double> at) -> VectorXd {
    const std::vector<double> predicted = runs.predict(which, keys, at);
    return (Eigen::Map<const VectorXd>(predicted.data(), rows).array() / measured.array()).log() / options.outlier;
  };
  const auto cost_of = [&](const VectorXd& r) {
    return (weights.array() * 2 * ((1 + r.array().square()).sqrt() - 1)).sum();
  };
  const auto moved = [&](size_t k, double by) {  // in log space, clamped to the range
    return std::clamp(values[k] * std::exp(by), std::max(keys[k]->low, 1e-9), keys[k]->high);
  };
  VectorXd r = residuals(values);
  double cost = cost_of(r), damping = 1e-2;
  for (int round = 0; round < options.most_rounds; ++round) {
    constexpr double kStep = 0.02;
    MatrixXd slopes(rows, n);
    for (size_t k = 0; k < keys.size(); ++k) {
      std::vector<double> at = values;
      at[k] = moved(k, kStep);
      if (at[k] == values[k]) at[k] = moved(k, -kStep);
      slopes.col(static_cast<Eigen::Index>(k)) = (residuals(at) - r) / std::log(at[k] / values[k]);
    }
    const VectorXd weight = weights.array() / (1 + r.array().square()).sqrt();
    const MatrixXd hessian = slopes.transpose() * weight.asDiagonal() * slopes;
    const VectorXd gradient = -slopes.transpose() * weight.cwiseProduct(r);
    bool better = false;
    const double before = cost;
    for (int attempt = 0; attempt < 6 && !better; ++attempt) {
      MatrixXd damped = hessian;
      damped.diagonal().array() += damping * hessian.diagonal().array() + 1e-6;
      const VectorXd step = damped.llt().solve(gradient);
      std::vector<double> next(keys.size());
      for (size_t k = 0; k < next.size(); ++k)
        next[k] = moved(k, std::clamp(step[static_cast<Eigen::Index>(k)], -0.5, 0.5));
      const VectorXd there = residuals(next);
      if (const double new_cost = cost_of(there); new_cost < cost) {
        values = next;
        r = there;
        cost = new_cost;
        better = true;
        damping = std::max(damping / 4, 1e-6);
      } else {
        damping *= 6;
      }
    }
    if (options.progress) options.progress(round + 1, cost);
    if (!better || before - cost < 1e-4 * before) break;
  }
  return values;
}

}  // namespace trivet
