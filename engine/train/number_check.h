// NumberCheck: decides whether a step is taken, from its loss and gradient norm, which are the same on all ranks.
// The decision itself is made on the device, against limits that earlier steps have set (op::AcceptStep); the host
// learns the outcome when it reads the step's numbers, and acts on it.
//
// A loss or gradient that is not finite, or exceeds train.spike_factor times the running median (of the last 64 steps
// taken, from the 16th on), leads to a warning, a skipped step or the end of the run, as the policies specify. A
// skipped step leaves weights and moments bitwise unchanged. Its batch is consumed, and the learning-rate schedule,
// which counts steps, advances; Adam's bias correction counts updates. After train.max_consecutive_skips in a row the
// run ends. The median is not saved: a resumed run detects spikes from its 16th step on. A step in which no label
// counts is also skipped, whatever the policies say, and never ends the run.
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
    std::string why{};  // empty for take
  };
  // The device refuses a step whose loss or norm exceeds these (+inf: no limit) or, if `finite`, is not finite.
  struct Limits {
    double loss, grad_norm;
    bool finite;
  };
  Limits limits() const;

  // A step's results from the device, and whether it was taken. Judged once per step, before the next call to limits().
  struct Numbers {
    double loss, grad_norm;
    bool finite;  // the loss and all gradients are
    bool taken;
    bool counts = true;  // at least one label does
  };
  Verdict judge(const Numbers& numbers);

  int64_t skipped() const { return skipped_; }
  void set_skipped(int64_t steps) { skipped_ = steps; }  // on resuming a run
  bool last_was_good() const { return last_was_good_; }  // taken, perhaps with a warning

 private:
  static constexpr size_t kWindow = 64, kFewest = 16;
  using History = std::array<double, kWindow>;

  // Limits above which a loss or norm is a spike.
  double loss_spike() const { return spike(losses_); }
  double norm_spike() const { return spike(norms_); }
  double spike(const History& history) const;

  const bool check_finite_, skip_non_finite_;
  const int64_t most_skips_;
  const double spike_factor_;
  const Action on_spike_;
  History losses_{}, norms_{};
  size_t steps_ = 0;  // total recorded in the histories
  int64_t skipped_ = 0, in_a_row_ = 0;
  bool last_was_good_ = true;
};

}  // namespace trivet
