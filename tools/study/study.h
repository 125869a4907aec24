// Study: an experiment over config keys, from a YAML file. study_file.h reads the file, plan.h decides which points can
// run and at what cost, runner.h runs them, summary.h draws the conclusions, report.h presents them.
//
// Glossary
//   factor   a named variable of the experiment; its levels are its values
//   level    one value of a factor: a label, and the keys that it sets
//   point    one level of every factor: one configuration
//   round    (from 1) one run of each point, and several of each baseline; a point's runs in a round are its repeat
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/words.h"

namespace trivet {

// Rounds that a verdict needs: with fewer, Student's t intervals are too wide to say much.
constexpr int64_t kFewestRounds = 5;

// A key for --set, or one of launch.h, and its value.
struct Setting {
  std::string key;
  std::string value;
};

struct Level {
  std::string label;
  std::vector<Setting> settings;  // none: the base unchanged
};

struct Factor {
  std::string name;
  std::vector<Level> levels;
  size_t baseline = 0;  // index in `levels`
  bool changes_numbers = true;
  bool condition = false;  // given, not chosen, such as a link's speed: only points with equal conditions are compared
};

enum class Design : uint8_t { grid, one_at_a_time, list };
enum class Launcher : uint8_t { threads, mpirun, srun, netlab };
constexpr auto words_of(Design) { return word_list("grid", "one_at_a_time", "list"); }
constexpr auto words_of(Launcher) { return word_list("threads", "mpirun", "srun", "netlab"); }

// [factor]: the index of its level.
using Choice = std::vector<size_t>;

struct Study {
  std::string path;  // of the study file
  std::string text;  // of the study file
  std::string name;
  std::string base;                  // the run's YAML file
  std::string out;                   // the folder for everything that the study writes
  std::vector<Setting> launch, set;  // for every point: launch.h's keys at the file's top level, and those under `set`
  Design design = Design::grid;
  std::vector<Factor> factors;
  std::vector<Choice> list;      // the points of design `list`
  std::vector<Choice> predict;   // points that --fit predicts before they are run
  int64_t repeats = 5;           // rounds; with auto_repeats, the maximum
  bool auto_repeats = false;     // until every ratio's 95 % interval is narrower than interval_width
  double interval_width = 0.02;  // upper end over lower end, minus 1
  int64_t baseline_every = 8;    // at most this many runs lie between two runs of a baseline
  int64_t seed = 1;              // for the order of runs within a round
  bool equal_points = false;     // an A/A study: points have equal settings, but are not merged into one run
  int64_t steps = 10;            // per run, unless its levels set train.train_iters
  int64_t warmup_steps = 2;      // the first of these, which are not measured
  double budget_minutes = 0;     // per call of the program; 0: unlimited
  double timeout_minutes = 10;   // per run
  bool trace = true;
  std::string metric = "step_seconds";  // the metric by which points are compared
  std::vector<std::string> responses;   // all metrics that are reported, `metric` first
  bool check_agreement = true;
  double tolerance = 0;  // relative, for losses that must agree; 0: bitwise

  Choice baseline() const {
    Choice choice;
    for (const Factor& factor : factors) choice.push_back(factor.baseline);
    return choice;
  }
  // The reference of a point: the baseline under the point's conditions.
  Choice baseline_of(const Choice& point) const {
    Choice choice = baseline();
    for (size_t i = 0; i < choice.size(); ++i)
      if (factors[i].condition) choice[i] = point[i];
    return choice;
  }
};

// True if a higher value of the metric is better.
bool is_better_high(std::string_view metric);

// The points of the design, each once, whether they can run or not. grid: all, the last factor varying fastest.
// one_at_a_time: the baseline, then all other levels of every factor. list: as listed, preceded by the baseline if it
// is not listed. Throws ConfigError for more than 10,000.
std::vector<Choice> design_points(const Study& study);

std::vector<std::string> labels_of(const Study& study, const Choice& choice);

// "bucket_size=1000, link=slow": the factors with several levels.
std::string describe_choice(const Study& study, const Choice& choice);
// The same for conditions only ("" if there are none), and for the other factors only.
std::string describe_conditions(const Study& study, const Choice& choice);
std::string describe_chosen(const Study& study, const Choice& choice);

}  // namespace trivet
