// Runs whose settings are all drawn at random together.
#pragma once

#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "tests/support/random_schedule.h"

namespace trivet::test {

class Draw {
 public:
  explicit Draw(int number) : random_(static_cast<uint64_t>(number)) {}

  int of(int low, int high) { return draw(random_, low, high); }
  bool one_in(int n) { return of(1, n) == 1; }
  template <class T>
  T among(std::initializer_list<T> values) {
    return values.begin()[of(0, static_cast<int>(values.size()) - 1)];
  }
  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_;
};

// Three variants of a run. one: on one rank; plain: sharded over tensor-, context- and data-parallel ranks with all
// else off; full: with everything that was drawn.
struct Runs {
  Config one, plain, full;
  int t = 1, p = 1, d = 1, c = 1;
  bool same_order = false;  // `plain` sums in the order of `one`, which stands in for it
  bool on_split_devices = false, ahead = false;
  std::string schedule_text;  // set if the schedule was drawn, too

  int ranks() const { return t * c * p * d; }
  std::string text() const;                  // `full` as text, to run it again
  std::vector<std::string> choices() const;  // what was drawn: "KEY=VALUE", sizes by their kind
};

// The draw with this number. Files that it needs are written to `folder`.
Runs draw_runs(int number, const std::string& folder);

// A subset of several hundred draws that covers pairs of choices greedily: each draw added covers the most new pairs.
struct CoveringDraws {
  std::vector<int> numbers;
  int64_t pairs = 0, covered = 0;  // pairs of choices in any draw; in the chosen draws
};
CoveringDraws covering_draws(int count);

// Swaps two ops of a rank in a randomly drawn schedule.
void exchange_two_ops(Draw& draw, const Runs& runs);

// Sets one key of the model or its layout to a value that is legal on its own.
void change_a_key(Draw& draw, Config& config);

}  // namespace trivet::test
