// Calibration: fits constants of a system's page to measured runs, and reports how well predictions agree with them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tools/plan/rows.h"

namespace trivet {

// Measured runs with their rehearsals: each is recorded once, and priced as often as constants change.
class MeasuredRuns {
 public:
  using Progress = std::function<void(size_t done, size_t all)>;
  // page: as load_system() takes it; a row's own constants are stronger than the page's. Throws ConfigError.
  MeasuredRuns(std::vector<MeasuredRow> rows, const std::string& page, const std::vector<std::string>& overrides,
               const Progress& progress = {});

  const std::vector<MeasuredRow>& rows() const { return rows_; }
  // Predicted seconds of a step of each of `which` rows, with `values` for `keys`, except those that a row gives.
  std::vector<double> predict(std::span<const size_t> which, std::span<const SystemKey* const> keys = {},
                              std::span<const double> values = {}) const;

 private:
  std::vector<MeasuredRow> rows_;
  std::vector<System> systems_;
  std::vector<Rehearsal> rehearsals_;
};

// Statistics of predicted / measured - 1.
struct Errors {
  size_t rows = 0;
  double mean = 0, median = 0, most = 0;  // of the absolute values
  double bias = 0;                        // mean of the signed values
};
Errors errors_of(const MeasuredRuns& runs, std::span<const size_t> which, std::span<const double> predicted);

// The values of `keys`, from `start` on, within their physical ranges, for which the logarithms of predicted and
// measured times differ least: Levenberg-Marquardt with the soft-L1 loss 2 (sqrt(1 + r^2) - 1), r in units of
// `outlier`, so that a row that is far off pulls little. All files weigh the same: the rows of one source
// share its habits. Numeric derivatives.
struct FitOptions {
  double outlier = 0.03;
  int most_rounds = 20;
  std::function<void(int round, double cost)> progress = {};
};
std::vector<double> fit(const MeasuredRuns& runs, std::span<const size_t> which, std::span<const SystemKey* const> keys,
                        std::vector<double> start, const FitOptions& options = {});

}  // namespace trivet
