// Calibration: fits a system spec's constants to measured runs, and reports how well predictions agree with them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tools/plan/rows.h"

namespace trivet {

// Measured runs with their rehearsals: each is recorded once, and repriced whenever constants change.
class MeasuredRuns {
 public:
  using Progress = std::function<void(size_t done, size_t all)>;
  // spec: as for load_system(); a row's own constants override the spec's. Throws ConfigError.
  MeasuredRuns(std::vector<MeasuredRow> rows, const std::string& spec, const std::vector<std::string>& overrides,
               const Progress& progress = {});

  const std::vector<MeasuredRow>& rows() const { return rows_; }
  // Predicted seconds per step for the rows `which`, with `values` for `keys`, except for keys that a row itself sets.
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

// Fits the values of `keys`, starting from `start` and within their physical ranges, to minimize the differences
// between the logarithms of predicted and measured times: Levenberg-Marquardt with numerical derivatives and the
// soft-L1 loss 2 (sqrt(1 + r^2) - 1), with r in units of `outlier`, so that outliers have little influence. Every file
// has the same weight, because the errors of rows from one source are correlated.
struct FitOptions {
  double outlier = 0.03;
  int most_rounds = 20;
  std::function<void(int round, double cost)> progress = {};
};
std::vector<double> fit(const MeasuredRuns& runs, std::span<const size_t> which, std::span<const SystemKey* const> keys,
                        std::vector<double> start, const FitOptions& options = {});

}  // namespace trivet
