// Runs whose switches are drawn, all at once.
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

// A run three times: on one rank; cut over tensor-, context- and data-parallel ranks with nothing else switched on; and
// whole.
struct Runs {
  Config one, plain, full;
  int t = 1, p = 1, d = 1, c = 1;
  bool same_order = false;  // `plain` adds as `one` does: it is that
  bool on_split_devices = false, ahead = false;
  std::string schedule_text;  // of a schedule that was drawn, too

  int ranks() const { return t * c * p * d; }
  std::string text() const;                  // of `full`, to run it again
  std::vector<std::string> choices() const;  // what was drawn: "KEY=VALUE", sizes by their kind
};

// The number-th. Files that it needs are put into `folder`.
Runs draw_runs(int number, const std::string& folder);

// Of some hundred draws those that together have the most pairs of choices: each next one has the most that are new.
struct CoveringDraws {
  std::vector<int> numbers;
  int64_t pairs = 0, covered = 0;  // of two choices: that some draw has, that a chosen one has
};
CoveringDraws covering_draws(int count);

// Exchanges two ops of a rank, in a schedule that was drawn.
void exchange_two_ops(Draw& draw, const Runs& runs);

// Sets one of the keys of the model and its layout to a value that it may have taken alone.
void change_a_key(Draw& draw, Config& config);

}  // namespace trivet::test
