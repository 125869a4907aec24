// A scaling law, fitted to runs of N parameters on D tokens:
//
//   L(N, D) = E + A / N^alpha + B / D^beta
//
// Approach 3 of Hoffmann et al. 2022: minimizes the sum of Huber losses (delta 1e-3) of log L from a grid of starting
// points, with Eigen's Levenberg-Marquardt instead of L-BFGS. N counts all parameters, as in that paper. C = 6 N D is
// then a run's cost if embeddings are tied: their weights are multiplied once per token, in the output layer.
//
// Intervals come from a bootstrap that resamples residuals, not runs: a study's sizes and lengths are fixed by its
// design, and a resample of a dozen runs often contains too few different ones to fit five parameters.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"

namespace trivet {

struct ScalingRun {
  std::string name;
  double parameters = 0, tokens = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();  // on validation data, at the end; NaN: not known yet
  bool predicted = false;                                  // held out of the fit
  double flops() const { return 6 * parameters * tokens; }
};

struct ScalingLaw {
  double E, A, alpha, B, beta;
  double loss(double parameters, double tokens) const;
  double best_parameters(double flops) const;  // the best N among those with 6 N D = flops
};

struct ScalingFit {
  ScalingLaw law;
  std::vector<double> residuals;      // of log L, widened by sqrt(n / (n - 5)) for the five fitted parameters
  std::vector<ScalingLaw> resampled;  // the law fitted to each bootstrap resample

  // The 95 % interval of a quantity that follows from the law; with_noise: the interval of one more measurement of it.
  std::pair<double, double> interval(const std::function<double(const ScalingLaw&)>& of, bool with_noise = false) const;
};

// Throws ConfigError if there are too few runs to fit five parameters.
void check_design(std::span<const ScalingRun> runs, std::string_view file = "runs");
// Throws like check_design(), or if a fitted run lacks its loss; DataError if no law with exponents from 0 to 5 fits.
ScalingFit fit_scaling(std::span<const ScalingRun> runs, std::string_view file = "runs", int resamples = 1000);

// One line per run, below the header kScalingColumns; predicted: yes or no. Throws DataError, IoError.
constexpr const char* kScalingColumns = "run,parameters,tokens,loss,predicted";
std::vector<ScalingRun> read_scaling_runs(const std::string& path);
std::string csv_of(std::span<const ScalingRun> runs);

// The fitted parameters, the quantities that follow from them, and the runs that were held out.
TextBlock law_table(std::span<const ScalingRun> runs, const ScalingFit& fit);
TextBlock prediction_table(std::span<const ScalingRun> runs, const ScalingFit& fit);
// Loss over N: the runs, and one curve of the law per compute budget C.
std::string isoflop_picture(std::span<const ScalingRun> runs, const ScalingFit& fit);

}  // namespace trivet
