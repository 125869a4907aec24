// NumberCheck: decides whether a step is taken, from its loss and gradient norm, with the same numbers on all ranks.
// The decision itself is made on the device, by limits that earlier steps have set (op::AcceptStep); the host learns
// of it when it reads the step's numbers, and draws the conclusions.
//
// A loss or gradient that is not finite, or exceeds train.spike_factor times the running median (of the last 64 steps
// taken, from the 16th on), is a warning, a skipped step or the end of the run, by the policies. A skipped step leaves
// weights and moments bitwise as they are. Its batch is consumed, and the learning-rate schedule, which counts steps,
// advances; Adam's bias correction counts updates. After train.max_consecutive_skips in a row the run ends. The median
// is not saved: a resumed run detects spikes from its 16th step on. A step without a label that counts is skipped, too,
// whatever the policies, and ends no run.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "engine/config/config.h"

namespace trivet {

class NumberCheck {
 public:
  explicit NumberCheck(const TrainConfig& config);

  using Action = StepAction;
  struct Verdict {
    Action action = Action::take;
    std::string why{};  // except for take
  };
  // Limits by which the device refuses a step: a loss or norm above these (+inf: no limit), and non-finite numbers.
  struct Limits {
    double loss, grad_norm;
    bool finite;
  };
  Limits limits() const;

  // The device's numbers of a step, and whether it was taken. Judged once a step, before the next one's limits.
  struct Numbers {
    double loss, grad_norm;
    bool finite;  // loss and all gradients are
    bool taken;
    bool counts = true;  // a label does
  };
  Verdict judge(const Numbers& numbers);

  int64_t skipped() const { return skipped_; }
  void set_skipped(int64_t steps) { skipped_ = steps; }  // when a run is resumed
  bool last_was_good() const { return last_was_good_; }  // take, or a warning

 private:
  static constexpr size_t kWindow = 64, kFewest = 16;
  using History = std::array<double, kWindow>;

  // Above which they are spikes.
  double loss_spike() const { return spike(losses_); }
  double norm_spike() const { return spike(norms_); }
  double spike(const History& history) const;

  const bool check_finite_, skip_non_finite_;
  const int64_t most_skips_;
  const double spike_factor_;
  const Action on_spike_;
  History losses_{}, norms_{};
  size_t steps_ = 0;  // in the histories, ever
  int64_t skipped_ = 0, in_a_row_ = 0;
  bool last_was_good_ = true;
};

}  // namespace trivet
