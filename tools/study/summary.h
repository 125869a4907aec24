// Summary: the conclusions from the runs of a study.
//
// The unit is the round, one run of each point: the steps inside a run are correlated, so a run counts as one value per
// metric. In a round the baseline of each condition runs again every `baseline_every` runs (plan.h). A run's value is
// its log ratio to the baseline there and then: to the baseline runs before and after it, interpolated by position, so
// that what drifts steadily in the machine cancels. Runs of two calls of the program are never divided by each other.
//
// All conclusions come from these log ratios, one per point and round: the ratio to the baseline is their
// geometric mean with a 95 % interval by Student's t over rounds; two points are compared by the differences of their
// log ratios within the rounds that have both; a main effect is the mean difference, within a round, of a level and its
// factor's baseline level over the settings of the other factors. A verdict needs kFewestRounds and is corrected for
// the number of comparisons in the study (Holm 1979), so that all verdicts of a study are right together with 95 %.
//
// The best under a condition is a set: every point that no other one is better than (paired t, corrected for all
// comparisons of that kind). It holds the truly best with 95 %; only where it is a single point is there a winner. The
// comparison is two-sided, so points that are equal have a winner in at most 5 % of studies.
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

// A ratio, as its geometric mean over rounds; of hidden_fraction a difference of 1 and a ratio, as its mean.
struct Estimate {
  int64_t rounds = 0;
  double value = 1;
  double low = 1, high = 1;  // 95 % interval by Student's t; `value` if there is one round
  double p = 1;              // two-sided, that there is no effect; 1 if there is one round
  bool has_interval() const { return rounds > 1; }
  double width() const { return high / low - 1; }
};

// A point against the baseline of its conditions. within_noise: its corrected p is above 5 %.
// differs: the losses are not the required ones.
enum class Verdict : uint8_t { not_measured, failed, baseline, too_few, better, worse, within_noise, differs };
constexpr auto words_of(Verdict) {
  return word_list("not measured", "failed", "baseline", "too few", "better", "worse", "within noise", "losses differ");
}

struct PointSummary {
  int64_t done = 0;                        // rounds with a finished run
  std::string failure;                     // of its last failed run; "": none. Such a point is never among the best
  std::map<std::string, Sample> metrics;   // over the rounds; of several runs in a round, their mean
  bool baseline = false;                   // of its conditions
  std::map<std::string, Estimate> ratios;  // of each metric to the baseline
  // The study's metric, adjusted: the baseline's geometric mean over its rounds, times the ratio. So points of one
  // condition are in the same order by it and by their ratios. Without a ratio, the point's own geometric mean.
  std::optional<double> adjusted;
  Verdict verdict = Verdict::not_measured;  // on the study's metric
  double corrected_p = 1;                   // of the verdict, after Holm
  // If the plan has the same point without overlap (Point::without_overlap): how much of the wire time that is
  // exposed there overlap hides, 1 - exposed wire / the same without overlap, for plain runs that expose at least
  // kMeasurable of their step; and the ratio of the time a rank computes, what sharing cores and memory costs.
  std::optional<Estimate> hidden, compute_inflation;
  std::string disagreement;  // with the losses it must have; "": none
  std::string folder;        // of its first finished run

  // Null, and empty, where the runs do not report it.
  const Sample* find(std::string_view metric) const;
  std::optional<double> median(std::string_view metric) const;
  const Estimate* ratio(std::string_view metric) const;
};

constexpr double kMeasurable = 0.01;

// The main effect of a level against its factor's baseline level, under one condition.
struct Effect {
  int64_t contexts = 0;     // settings of the other factors it was seen in
  Estimate ratio;           // the mean over them, within a round
  double min = 1, max = 1;  // of the ratios in the single contexts: how much factors depend on each other
  double corrected_p = 1;   // after Holm, over all main effects of the study
  Verdict verdict = Verdict::not_measured;
};

// The conclusion under one setting of the factors that are conditions; without such factors there is one.
struct Conclusion {
  std::vector<size_t> points;    // of the plan, under these conditions, in its order
  size_t baseline = 0;           // of `points`
  std::optional<size_t> leader;  // the best estimate of the points that did not fail; empty: nothing is measured
  int64_t rounds = 0;            // of the point with the fewest, of those that did not fail
  // The points that may be the best: the leader, and those that it is not told apart from, better ones first. Empty
  // if there are too few rounds, or there is nothing to compare. One: the winner.
  std::vector<size_t> best;
  std::vector<std::vector<Effect>> effects;  // [factor][level]; no level of conditions and of factors of one level
};

// The resolution of the design: `deviation` is that of a point's log ratio from round to round.
struct Resolution {
  double deviation = 0;
  int64_t rounds = 0, comparisons = 0;
  bool equal_points = false;  // measured by an A/A study (trivet study FILE --aa); else from the study's own rounds
  // The smallest effect, as a ratio minus 1, that a verdict finds in about four of five studies: (t of the corrected
  // confidence + t of 80 %) standard errors.
  double effect() const;
};

struct Summary {
  std::vector<PointSummary> points;     // of Plan::points
  std::vector<Conclusion> conclusions;  // in the order of the plan
  std::optional<Resolution> resolution;
  int64_t rounds = 0;                      // asked for: rounds_wanted()
  int64_t runs = 0, done = 0, failed = 0;  // runs: in those rounds, with repeated baselines. failed: points
  int64_t other_rows = 0;                  // results of points that are no longer in the plan
  int64_t disagreements = 0;
  std::set<std::string> metrics;  // of any point
  std::set<std::string> machines;
  int shared_cores = 0, threads = 0;  // of a run with more threads than its machine had cores; 0: there is none

  const Conclusion& conclusion_of(size_t point) const;
  // True if it is the winner, or among several that may be.
  bool wins(size_t point) const;
  bool may_be_best(size_t point) const;
};

Summary summarize(const Study& study, const Plan& plan, const std::vector<RunRow>& rows);

// Corrects the p-values of estimates that have rounds enough for their number by S. Holm's step-down procedure (1979),
// and gives them a verdict: to call those effects whose corrected p is at most alpha is wrong about any of them with
// probability alpha, however they depend on each other.
struct Judged {
  const Estimate* ratio;
  double* corrected_p;  // where to put it
  Verdict* verdict;
};
void judge(const Study& study, std::vector<Judged> all);

// The rounds that a study needs: its repeats; with auto_repeats at least kFewestRounds, and one more as long as the
// interval of some ratio is wider than interval_width, up to its repeats.
int64_t rounds_wanted(const Study& study, const Plan& plan, const std::vector<RunRow>& rows);

// ---- the estimator

// [round]: the log ratio of a point, or of a factor's level, to its baseline; of a single value, to 1.
using LogRatios = std::map<int64_t, double>;

// The finished runs of a study, each with the runs of its baseline that are next to it.
class Rounds {
 public:
  Rounds(const Study& study, const Plan& plan, const std::vector<RunRow>& rows);

  // A baseline has zeros. Rounds in which a run has no value of the metric above 0 are left out.
  LogRatios log_ratios(size_t point, const std::string& metric) const;
  // The mean over the runs of a round.
  std::map<int64_t, double> values(size_t point, const std::string& metric) const;
  // Their logarithms, of the values above 0.
  LogRatios log_values(size_t point, const std::string& metric) const;
  // [round]: the quotient of two points' values, of runs of one call.
  std::map<int64_t, double> quotients(size_t over, size_t under, const std::string& metric) const;
  std::set<std::string> metrics(size_t point) const;  // that its runs report
  std::string first_folder(size_t point) const;       // of its first run; "": it has none

 private:
  struct Pairing {
    int64_t round = 1, call = 0;
    const RunRow *run = nullptr, *before = nullptr, *after = nullptr;  // before, after: of the baseline; may be null
    double weight_of_after = 0;
  };
  std::vector<std::vector<Pairing>> pairings_;  // [point], as they were run
};

LogRatios operator-(const LogRatios& a, const LogRatios& b);  // of the rounds that both have
MeanEstimate mean_of_logs(const LogRatios& values);
Estimate ratio_of(const MeanEstimate& logs);
inline Estimate estimate_ratio(const LogRatios& values) { return ratio_of(mean_of_logs(values)); }

}  // namespace trivet
