// A scaling law, fitted to runs of N parameters on D tokens:
//
//   L(N, D) = E + A / N^alpha + B / D^beta
//
// Approach 3 of Hoffmann et al. 2022: the least sum of Huber losses (1e-3) of log L, from a grid of starts, with the
// Levenberg-Marquardt method of Eigen instead of L-BFGS. N counts all parameters, as theirs does. C = 6 N D is then the
// cost of a run where embeddings are tied: their weights are multiplied once a token, in the output layer.
//
// Intervals are of a bootstrap that resamples residuals, not runs: the sizes and lengths of a study are its design, and
// of a dozen runs a resample often has too few of them for five parameters.
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
  double best_parameters(double flops) const;  // of all N with 6 N D = flops
};

struct ScalingFit {
  ScalingLaw law;
  std::vector<double> residuals;      // of log L, widened by sqrt(n / (n - 5)) for the parameters that were fitted
  std::vector<ScalingLaw> resampled;  // fits of the bootstrap

  // The 95 % interval of a number of the law; with_noise: of one more measurement of it.
  std::pair<double, double> interval(const std::function<double(const ScalingLaw&)>& of, bool with_noise = false) const;
};

// Throws ConfigError where the runs to be fitted are too few for five parameters.
void check_design(std::span<const ScalingRun> runs, std::string_view file = "runs");
// The same, and if one of them lacks its loss; DataError if no law with exponents from 0 to 5 fits.
ScalingFit fit_scaling(std::span<const ScalingRun> runs, std::string_view file = "runs", int resamples = 1000);

// A line a run, under the line of kScalingColumns; predicted: yes or no. Throws DataError, IoError.
constexpr const char* kScalingColumns = "run,parameters,tokens,loss,predicted";
std::vector<ScalingRun> read_scaling_runs(const std::string& path);
std::string csv_of(std::span<const ScalingRun> runs);

// The parameters and what follows from them; the runs that were held out.
TextBlock law_table(std::span<const ScalingRun> runs, const ScalingFit& fit);
TextBlock prediction_table(std::span<const ScalingRun> runs, const ScalingFit& fit);
// Loss over N: a curve of the law for each budget C of the runs, and the runs.
std::string isoflop_picture(std::span<const ScalingRun> runs, const ScalingFit& fit);

}  // namespace trivet
