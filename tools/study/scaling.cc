#include "tools/study/scaling.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <random>
#include <set>
#include <unsupported/Eigen/LevenbergMarquardt>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/scalar.h"
#include "base/statistics.h"

namespace trivet {
namespace {

using Eigen::ArrayXd, Eigen::ArrayXXd, Eigen::MatrixXd, Eigen::VectorXd;

constexpr int kParameters = 5;
constexpr size_t kFewestRuns = kParameters + 2;
constexpr double kHuber = 1e-3;
constexpr double kMostExponent = 5;  // published exponents are below 1

// The root of twice the Huber loss, with the residual's sign, so that least squares minimizes the Huber losses.
double huber_root(double r) {
  const double size = std::abs(r);
  return size <= kHuber ? r : std::copysign(std::sqrt(kHuber * (2 * size - kHuber)), r);
}

// The residuals at x = (log E, log A', alpha, log B', beta), where A' is A / N^alpha at the mean of log N, and B'
// likewise for D. This makes A' and alpha nearly independent in the fit.
struct Residuals : Eigen::DenseFunctor<double> {
  ArrayXd n, d, loss;  // logarithms; n and d less their means

  Residuals(ArrayXd log_n, ArrayXd log_d, ArrayXd log_loss)
      : DenseFunctor(kParameters, static_cast<int>(log_n.size())), n(log_n), d(log_d), loss(log_loss) {}
  ArrayXXd terms(const VectorXd& x) const {
    ArrayXXd terms(n.size(), 3);
    terms << ArrayXd::Constant(n.size(), std::exp(x[0])), (x[1] - x[2] * n).exp(), (x[3] - x[4] * d).exp();
    return terms;
  }
  ArrayXd fitted(const VectorXd& x) const { return terms(x).rowwise().sum().log(); }
  int operator()(const VectorXd& x, VectorXd& roots) const {
    roots = (fitted(x) - loss).unaryExpr(&huber_root);
    return 0;
  }
  int df(const VectorXd& x, MatrixXd& slopes) const {
    const ArrayXXd terms = this->terms(x);
    const ArrayXd sum = terms.rowwise().sum(), r = sum.log() - loss;
    const ArrayXd scale =
        r.unaryExpr([](double r) { return std::abs(r) <= kHuber ? 1 : kHuber / huber_root(std::abs(r)); });
    const ArrayXXd shares = terms.colwise() * (scale / sum);
    slopes << shares.col(0), shares.col(1), -shares.col(1) * n, shares.col(2), -shares.col(2) * d;
    return 0;
  }
};

// The norm of the residuals at the minimum that is reached from x.
double minimize(Residuals residuals, VectorXd& x) {
  Eigen::LevenbergMarquardt<Residuals> method(residuals);
  method.minimize(x);
  return std::isfinite(method.fnorm()) ? method.fnorm() : std::numeric_limits<double>::infinity();
}

VectorXd best_of_grid(const Residuals& residuals) {
  VectorXd best;
  double least = std::numeric_limits<double>::infinity();
  for (const double floor : {0.3, 0.6, 0.9})
    for (const double share : {0.25, 0.75})
      for (const double alpha : {0.2, 0.5, 1.2})
        for (const double beta : {0.2, 0.5, 1.2}) {
          VectorXd x(kParameters);
          x << std::log(floor), std::log((1 - floor) * share), alpha, std::log((1 - floor) * (1 - share)), beta;
          for (const int k : {0, 1, 3}) x[k] += residuals.loss.mean();
          if (const double norm = minimize(residuals, x); norm < least) least = norm, best = x;
        }
  check(best.size() > 0, "no fit of the scaling law converged");
  return best;
}

}  // namespace

void check_design(std::span<const ScalingRun> runs, std::string_view file) {
  std::set<double> sizes, lengths;
  std::set<std::pair<double, double>> fitted;
  for (const ScalingRun& run : runs)
    if (!run.predicted)
      fitted.emplace(run.parameters, run.tokens), sizes.insert(run.parameters), lengths.insert(run.tokens);
  if (fitted.size() < kFewestRuns || sizes.size() < 3 || lengths.size() < 3)
    throw ConfigError(
        fmt::format("{}: a scaling law has {} parameters: found {} different runs, of {} sizes on {} numbers of "
                    "tokens, expected at "
                    "least {} of 3 sizes on 3 numbers of tokens, and those to predict in addition",
                    file, kParameters, fitted.size(), sizes.size(), lengths.size(), kFewestRuns));
}

double ScalingLaw::loss(double parameters, double tokens) const {
  return E + A / std::pow(parameters, alpha) + B / std::pow(tokens, beta);
}

double ScalingLaw::best_parameters(double flops) const {
  return std::pow(alpha * A / (beta * B) * std::pow(flops / 6, beta), 1 / (alpha + beta));
}

std::pair<double, double> ScalingFit::interval(const std::function<double(const ScalingLaw&)>& of,
                                               bool with_noise) const {
  std::vector<double> values;
  for (size_t i = 0; i < resampled.size(); ++i) {
    const double value = of(resampled[i]) * (with_noise ? std::exp(residuals[i % residuals.size()]) : 1);
    values.push_back(std::isnan(value) ? std::numeric_limits<double>::infinity() : value);
  }
  std::ranges::sort(values);
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
  };
  return {at((1 - kConfidence) / 2), at((1 + kConfidence) / 2)};
}

ScalingFit fit_scaling(std::span<const ScalingRun> runs, std::string_view file, int resamples) {
  check_design(runs, file);
  std::vector<ScalingRun> fitted;
  std::ranges::copy_if(runs, std::back_inserter(fitted), [](const ScalingRun& run) { return !run.predicted; });
  for (const ScalingRun& run : fitted)
    if (!std::isfinite(run.loss))
      throw ConfigError(
          fmt::format("{}: a scaling law needs the validation loss of every run, and {} has none", file, run.name));
  const auto count = static_cast<Eigen::Index>(fitted.size());
  ArrayXd n(count), d(count), loss(count);
  for (Eigen::Index i = 0; i < count; ++i) {
    const ScalingRun& run = fitted[static_cast<size_t>(i)];
    n[i] = std::log(run.parameters), d[i] = std::log(run.tokens), loss[i] = std::log(run.loss);
  }
  const double middle_n = n.mean(), middle_d = d.mean();
  Residuals residuals(n - middle_n, d - middle_d, loss);
  const VectorXd best = best_of_grid(residuals);
  const auto law_at = [&](const VectorXd& x) {
    return ScalingLaw{std::exp(x[0]), std::exp(x[1] + x[2] * middle_n), x[2], std::exp(x[3] + x[4] * middle_d), x[4]};
  };

  if (const double alpha = best[2], beta = best[4];
      !(alpha > 0 && alpha < kMostExponent && beta > 0 && beta < kMostExponent))
    throw DataError(fmt::format(
        "{}: the runs do not determine a scaling law: the best fit has alpha {:.3g} and beta {:.3g}, expected "
        "both above 0 and below {}: losses that fall with N and with D, and by less and less",
        file, alpha, beta, kMostExponent));
  const ArrayXd center = residuals.fitted(best);
  const ArrayXd left =
      (loss - center) * std::sqrt(static_cast<double>(count) / static_cast<double>(count - kParameters));
  ScalingFit fit{.law = law_at(best), .residuals = {left.begin(), left.end()}, .resampled = {}};
  std::mt19937_64 random(1);
  for (int sample = 0; sample < resamples; ++sample) {
    for (Eigen::Index i = 0; i < count; ++i)
      residuals.loss[i] = center[i] + left[static_cast<Eigen::Index>(random() % fitted.size())];
    VectorXd x = best;
    minimize(residuals, x);
    fit.resampled.push_back(law_at(x));
  }
  return fit;
}

std::vector<ScalingRun> read_scaling_runs(const std::string& path) {
  std::vector<ScalingRun> runs;
  bool first = true;
  for_each_csv_line(path, [&](const std::string& line, const std::string& place) {
    if (std::exchange(first, false)) {
      if (line != kScalingColumns)
        throw DataError(fmt::format("{}: found {}, expected {}", place, quote(line), kScalingColumns));
      return;
    }
    const std::vector<std::string> cells = csv_cells(line);
    const auto number_of = [&](size_t i) { return parse_number(cells[i]).value_or(0); };
    const bool good = cells.size() == 5 && number_of(1) > 0 && number_of(2) > 0 &&
                      (cells[3].empty() || number_of(3) > 0) && (cells[4] == "yes" || cells[4] == "no");
    if (!good)
      throw DataError(
          fmt::format("{}: found {}, expected a name, three numbers above 0 (of a run that was not made "
                      "no loss), and yes or no",
                      place, quote(line)));
    runs.push_back(
        {.name = cells[0], .parameters = number_of(1), .tokens = number_of(2), .predicted = cells[4] == "yes"});
    if (!cells[3].empty()) runs.back().loss = number_of(3);
  });
  return runs;
}

std::string csv_of(std::span<const ScalingRun> runs) {
  std::string text = std::string(kScalingColumns) + "\r\n";
  for (const ScalingRun& run : runs)
    text += csv_line({run.name, fmt::format("{}", run.parameters), fmt::format("{}", run.tokens),
                      std::isfinite(run.loss) ? fmt::format("{}", run.loss) : "", run.predicted ? "yes" : "no"});
  return text;
}

}  // namespace trivet
