#include "tools/plan/calibrate.h"

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

void set_value(System& system, const SystemKey& key, double value) {
  std::visit([&]<class T>(T System::*member) { system.*member = static_cast<T>(value); }, key.member);
}

std::string file_of(const MeasuredRow& row) { return row.place.substr(0, row.place.rfind(':')); }

bool gives(const MeasuredRow& row, const SystemKey& key) {
  return std::ranges::any_of(row.system_sets,
                             [&](const std::string& set) { return set.starts_with(std::string(key.name) + '='); });
}

// Solves a x = b for a symmetric positive definite a, by Cholesky's decomposition.
std::vector<double> solve(std::vector<std::vector<double>> a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = a[i][j];
      for (size_t k = 0; k < j; ++k) sum -= a[i][k] * a[j][k];
      a[i][j] = i == j ? std::sqrt(std::max(sum, 1e-300)) : sum / a[j][j];
    }
    for (size_t k = 0; k < i; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

}  // namespace

MeasuredRuns::MeasuredRuns(std::vector<MeasuredRow> rows, const std::string& page,
                           const std::vector<std::string>& overrides, const Progress& progress)
    : rows_(std::move(rows)), systems_(rows_.size()), rehearsals_(rows_.size()) {
  std::atomic<size_t> done = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    std::vector<std::string> sets = overrides;
    sets.insert(sets.end(), rows_[i].system_sets.begin(), rows_[i].system_sets.end());
    try {
      systems_[i] = load_system(page, sets);
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
  const size_t n = keys.size();
  std::map<std::string, size_t> rows_of_file;
  for (const size_t i : which) ++rows_of_file[file_of(runs.rows()[i])];
  std::vector<double> weights;
  for (const size_t i : which) weights.push_back(1 / static_cast<double>(rows_of_file[file_of(runs.rows()[i])]));
  const auto residuals = [&](std::span<const double> at) {
    std::vector<double> r = runs.predict(which, keys, at);
    for (size_t i = 0; i < r.size(); ++i) r[i] = std::log(r[i] / runs.rows()[which[i]].step_seconds) / options.outlier;
    return r;
  };
  const auto cost_of = [&](std::span<const double> r) {
    double cost = 0;
    for (size_t i = 0; i < r.size(); ++i) cost += weights[i] * 2 * (std::sqrt(1 + r[i] * r[i]) - 1);
    return cost;
  };
  const auto moved = [&](size_t k, double by) {  // in the logarithm, and in the range
    return std::clamp(values[k] * std::exp(by), std::max(keys[k]->low, 1e-9), keys[k]->high);
  };
  std::vector<double> r = residuals(values);
  double cost = cost_of(r), damping = 1e-2;
  for (int round = 0; round < options.most_rounds; ++round) {
    constexpr double kStep = 0.02;
    std::vector<std::vector<double>> slopes;  // [key][row]
    for (size_t k = 0; k < n; ++k) {
      std::vector<double> at = values;
      at[k] = moved(k, kStep);
      if (at[k] == values[k]) at[k] = moved(k, -kStep);
      std::vector<double> slope = residuals(at);
      const double by = std::log(at[k] / values[k]);
      for (size_t i = 0; i < slope.size(); ++i) slope[i] = (slope[i] - r[i]) / by;
      slopes.push_back(std::move(slope));
    }
    std::vector<std::vector<double>> hessian(n, std::vector<double>(n, 0));
    std::vector<double> gradient(n, 0);
    for (size_t i = 0; i < r.size(); ++i) {
      const double weight = weights[i] / std::sqrt(1 + r[i] * r[i]);
      for (size_t a = 0; a < n; ++a) {
        gradient[a] -= weight * slopes[a][i] * r[i];
        for (size_t b = 0; b < n; ++b) hessian[a][b] += weight * slopes[a][i] * slopes[b][i];
      }
    }
    bool better = false;
    const double before = cost;
    for (int attempt = 0; attempt < 6 && !better; ++attempt) {
      auto damped = hessian;
      for (size_t a = 0; a < n; ++a) damped[a][a] += damping * hessian[a][a] + 1e-6;
      const std::vector<double> step = solve(std::move(damped), gradient);
      std::vector<double> next(n);
      for (size_t k = 0; k < n; ++k) next[k] = moved(k, std::clamp(step[k], -0.5, 0.5));
      std::vector<double> there = residuals(next);
      if (const double new_cost = cost_of(there); new_cost < cost) {
        values = next, r = std::move(there), cost = new_cost, better = true;
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
