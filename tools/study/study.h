// Study: an experiment over config keys, from a YAML file. study_file.h reads the file, plan.h decides which of
// them can run and at what cost, runner.h runs them, summary.h and report.h draw the conclusions.
//
// Glossary
//   factor   something that is varied, under a name; its levels are the values it takes
//   level    one of them: a label, and the keys that it sets
//   point    a level of every factor: one configuration
//   round    one run of each point, and several of the baselines; a repeat is a point's part in it. From 1
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/words.h"

namespace trivet {

// Rounds of a verdict: with fewer, Student's t intervals are too wide to say much.
constexpr int64_t kFewestRounds = 5;

// A setting for --set; or a key of launch.h.
struct Setting {
  std::string key;
  std::string value;
};

struct Level {
  std::string label;
  std::vector<Setting> settings;  // none: as in the base
};

struct Factor {
  std::string name;
  std::vector<Level> levels;
  size_t baseline = 0;  // of `levels`
  bool changes_numbers = true;
  bool condition = false;  // given, not chosen: a link's speed. Points are compared where it is the same
};

enum class Design : uint8_t { grid, one_at_a_time, list };
enum class Launcher : uint8_t { threads, mpirun, srun, netlab };
constexpr auto words_of(Design) { return word_list("grid", "one_at_a_time", "list"); }
constexpr auto words_of(Launcher) { return word_list("threads", "mpirun", "srun", "netlab"); }

// The level of each factor.
using Choice = std::vector<size_t>;

struct Study {
  std::string path;  // of the file
  std::string text;  // of the file
  std::string name;
  std::string base;                  // the run's YAML file
  std::string out;                   // folder of everything that the study writes
  std::vector<Setting> launch, set;  // at every point: keys of the file itself that launch.h has, and those under `set`
  Design design = Design::grid;
  std::vector<Factor> factors;
  std::vector<Choice> list;      // of the design `list`
  int64_t repeats = 5;           // rounds; with auto_repeats at most
  bool auto_repeats = false;     // until every ratio's 95 % interval is narrower than interval_width
  double interval_width = 0.02;  // upper end over lower end, minus 1
  int64_t baseline_every = 8;    // at most this many runs lie between two runs of a baseline
  int64_t seed = 1;              // of the order of runs within a round
  bool equal_points = false;     // an A/A study: points have the same settings, and are runs of their own all the same
  int64_t steps = 10;            // of a run
  int64_t warmup_steps = 2;      // the first ones, which are not measured
  double budget_minutes = 0;     // of one call of the program; 0: no end
  double timeout_minutes = 10;   // of one run
  bool trace = true;
  std::string metric = "step_seconds";  // by which the points are compared
  std::vector<std::string> responses;   // all that they are measured by: the metric first
  bool check_agreement = true;
  double tolerance = 0;  // of losses that must agree, relative; 0: bitwise

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

// True if more of a metric is better.
bool is_better_high(std::string_view metric);

// The points of the design, each once, whether they can run or not. grid: all, the last factor changes fastest.
// one_at_a_time: the baseline, then every other level of each factor in turn. list: as listed, the baseline in front
// where it is not among them. Throws ConfigError for more than 10,000.
std::vector<Choice> design_points(const Study& study);

std::vector<std::string> labels_of(const Study& study, const Choice& choice);

// "bucket_size=1000, link=slow": of the factors with several levels.
std::string describe_choice(const Study& study, const Choice& choice);
// The same, only of the factors that are conditions ("" if there are none), and only of the others.
std::string describe_conditions(const Study& study, const Choice& choice);
std::string describe_chosen(const Study& study, const Choice& choice);

}  // namespace trivet
