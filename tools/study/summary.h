// Summary: the conclusions drawn from a study's runs.
//
// The statistical unit is the round, one run of each point: steps within a run are correlated, so a run counts as one
// value per metric. In a round the baseline of each condition runs again every `baseline_every` runs (plan.h). A run's
// value is its log ratio to the baseline at that time, interpolated by position between the baseline runs before and
// after it, so that steady drift of the machine cancels. Runs in different calls of the program never form a ratio.
//
// All conclusions come from these log ratios, one per point and round: the ratio to the baseline is their geometric
// mean with a 95 % interval by Student's t over rounds; two points are compared by the differences of their log ratios
// in the rounds with both; a main effect is the mean difference, within a round, between a level and its factor's
// baseline level over the settings of the other factors. A verdict needs kFewestRounds and is corrected for the number
// of comparisons in the study (Holm 1979), so that all verdicts of a study are jointly right with 95 % confidence.
//
// The best under a condition is a set: every point that no other point is shown to beat (paired t test, corrected for
// all comparisons of that kind). It contains the true best with 95 % confidence; if it has a single point, that is the
// winner. The test is two-sided, so if all points are equal, at most 5 % of studies have a winner.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/statistics.h"
#include "base/words.h"
#include "tools/study/plan.h"

namespace trivet {

// A ratio: its geometric mean over rounds. For PointSummary::hidden, the arithmetic mean of 1 minus a ratio.
struct Estimate {
  int64_t rounds = 0;
  double value = 1;
  double low = 1, high = 1;  // 95 % interval by Student's t; both `value` for a single round
  double p = 1;              // two-sided p-value of no effect; 1 for a single round
  bool has_interval() const { return rounds > 1; }
  double width() const { return high / low - 1; }
};

// A point compared with the baseline of its conditions. within_noise: its corrected p-value is above 5 %.
// differs: its losses disagree with those they must match.
enum class Verdict : uint8_t { not_measured, failed, baseline, too_few, better, worse, within_noise, differs };
constexpr auto words_of(Verdict) {
  return word_list("not measured", "failed", "baseline", "too few", "better", "worse", "within noise", "losses differ");
}

struct PointSummary {
  int64_t done = 0;                        // rounds with a finished run
  std::string failure;                     // reason of its last failed run; "": none. Failed points are never best
  std::map<std::string, Sample> metrics;   // over the rounds; several runs in a round count as their mean
  bool baseline = false;                   // true for the baseline of its conditions
  std::map<std::string, Estimate> ratios;  // by metric: its ratio to the baseline
  // The study's metric, adjusted: the baseline's geometric mean over its rounds, times the ratio, so that points under
  // one condition are ordered as by their ratios. Without a ratio, the point's own geometric mean.
  std::optional<double> adjusted;
  Verdict verdict = Verdict::not_measured;  // on the study's metric
  double corrected_p = 1;                   // of the verdict, after Holm's correction
  // Only if the plan also has the point without overlap (Point::without_overlap). hidden: the fraction of that point's
  // exposed wire time that overlap hides, 1 - exposed / exposed without overlap, if it exposes at least kMeasurable of
  // its step. compute_inflation: compute time over that without overlap, i.e. the cost of sharing cores and memory.
  std::optional<Estimate> hidden, compute_inflation;
  std::string disagreement;  // with the losses it must match; "": none
  std::string folder;        // of its first finished run

  // Null, or empty, if the runs do not report the metric.
  const Sample* find(std::string_view metric) const;
  std::optional<double> median(std::string_view metric) const;
  const Estimate* ratio(std::string_view metric) const;
};

constexpr double kMeasurable = 0.01;

// The main effect of a level against its factor's baseline level, under one condition.
struct Effect {
  int64_t contexts = 0;     // settings of the other factors in which it was measured
  Estimate ratio;           // the mean over the contexts, within a round
  double min = 1, max = 1;  // range of the ratio over single contexts: how much the factors interact
  double corrected_p = 1;   // after Holm's correction over all main effects of the study
  Verdict verdict = Verdict::not_measured;
};

// The conclusion under one combination of conditions; a study without conditions has one conclusion.
struct Conclusion {
  std::vector<size_t> points;    // indices in Plan::points, those under these conditions, in order
  size_t baseline = 0;           // one of `points`
  std::optional<size_t> leader;  // the candidate with the best estimate; empty: no candidates
  int64_t rounds = 0;            // the most rounds of any point that did not fail
  // The points that may be the best: those that no other is shown to beat, better ones first. Empty if there are too
  // few rounds, or nothing to compare. A single point is the winner.
  std::vector<size_t> best;
  std::vector<std::vector<Effect>> effects;  // [factor][level]; empty for conditions and for factors with one level
};

// The resolution of the design. `deviation`: standard deviation of a point's log ratio from round to round.
struct Resolution {
  double deviation = 0;
  int64_t rounds = 0, comparisons = 0;
  bool equal_points = false;  // measured by an A/A study (trivet study FILE --aa); else from the study's own rounds
  // The smallest effect, as a ratio minus 1, that a verdict detects with a power of about 80 %: (t of the corrected
  // confidence + t of 80 %) standard errors.
  double effect() const;
};

struct Summary {
  std::vector<PointSummary> points;     // [point], as in Plan::points
  std::vector<Conclusion> conclusions;  // in the order of the plan
  std::optional<Resolution> resolution;
  int64_t rounds = 0;                      // requested: rounds_wanted()
  int64_t runs = 0, done = 0, failed = 0;  // runs: in these rounds, repeated baselines included. failed: points
  int64_t other_rows = 0;                  // results of points that are no longer in the plan
  int64_t disagreements = 0;
  std::set<std::string> metrics;  // those that any point reports
  std::set<std::string> machines;
  int shared_cores = 0, threads = 0;  // cores and threads of a run with more threads than cores; 0: no such run

  const Conclusion& conclusion_of(size_t point) const;
  // wins(): true if the point is the winner. may_be_best(): true if it is in Conclusion::best.
  bool wins(size_t point) const;
  bool may_be_best(size_t point) const;
};

Summary summarize(const Study& study, const Plan& plan, const std::vector<RunRow>& rows);

// Corrects the p-values of estimates with enough rounds for multiple comparisons, by S. Holm's step-down procedure
// (1979), and sets their verdicts. If effects with a corrected p-value of at most alpha are called real, at least
// one of these calls is false with probability at most alpha, however the estimates depend on each other.
struct Judged {
  const Estimate* ratio;
  double* corrected_p;  // output
  Verdict* verdict;
};
void judge(const Study& study, std::vector<Judged> all);

// The number of rounds that a study needs: its repeats; with auto_repeats, at least kFewestRounds, then one more as
// long as any ratio's interval is wider than interval_width, up to its repeats.
int64_t rounds_wanted(const Study& study, const Plan& plan, const std::vector<RunRow>& rows);

// ---- the estimator

// [round]: the log ratio of a point, or of a factor's level, to its baseline; or the logarithm of a single value.
using LogRatios = std::map<int64_t, double>;

// The finished runs of a study, each with the nearest baseline runs before and after it.
class Rounds {
 public:
  Rounds(const Study& study, const Plan& plan, const std::vector<RunRow>& rows);

  // Zeros for a baseline itself. Rounds without a ratio of two positive values are omitted.
  LogRatios log_ratios(size_t point, const std::string& metric) const;
  // [round]: the mean over its runs.
  std::map<int64_t, double> values(size_t point, const std::string& metric) const;
  // The logarithms of the positive ones among these values.
  LogRatios log_values(size_t point, const std::string& metric) const;
  // [round]: the quotient of two points' values, from runs in the same call.
  std::map<int64_t, double> quotients(size_t over, size_t under, const std::string& metric) const;
  std::set<std::string> metrics(size_t point) const;  // metrics that its runs report
  std::string first_folder(size_t point) const;       // folder of its first run; "": no runs

 private:
  struct Pairing {
    int64_t round = 1, call = 0;
    const RunRow *run = nullptr, *before = nullptr, *after = nullptr;  // before, after: baseline runs; may be null
    double weight_of_after = 0;
  };
  std::vector<std::vector<Pairing>> pairings_;  // [point], in run order
};

LogRatios operator-(const LogRatios& a, const LogRatios& b);  // over the rounds that both contain
MeanEstimate mean_of_logs(const LogRatios& values);
Estimate ratio_of(const MeanEstimate& logs);
inline Estimate estimate_ratio(const LogRatios& values) { return ratio_of(mean_of_logs(values)); }

}  // namespace trivet
