#include "engine/train/number_check.h"

#include <algorithm>
#include <fmt/format.h>

namespace trivet {

NumberCheck::NumberCheck(const TrainConfig& config)
    : check_finite_(config.check_for_nan_in_loss_and_grad),
      skip_non_finite_(config.non_finite_policy == "skip"),
      most_skips_(config.max_consecutive_skips),
      spike_factor_(config.spike_factor),
      on_spike_(config.spike_policy == "warn"   ? Action::warn
                : config.spike_policy == "skip" ? Action::skip
                                                : Action::stop) {}

double NumberCheck::History::median(size_t count) const {
  std::array<double, kWindow> sorted = values;
  const auto middle = sorted.begin() + static_cast<int64_t>(count / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<int64_t>(count));
  return *middle;
}

NumberCheck::Verdict NumberCheck::judge(double loss, double grad_norm, bool finite) {
  Verdict verdict;
  if (!finite) {
    if (check_finite_) verdict = {skip_non_finite_ ? Action::skip : Action::stop, "not finite"};
  } else if (spike_factor_ > 0) {
    const size_t count = std::min(steps_, kWindow);
    const double usual_loss = losses_.median(count), usual_norm = norms_.median(count);
    if (count >= kFewest && loss > spike_factor_ * usual_loss)
      verdict = {on_spike_, fmt::format("a spike: the loss is {:.6g}, {:.1f} times the median of the last {} steps",
                                        loss, loss / usual_loss, count)};
    else if (count >= kFewest && grad_norm > spike_factor_ * usual_norm)
      verdict = {on_spike_, fmt::format("a spike: the gradient norm is {:.6g}, {:.1f} times the median of the last {} "
                                        "steps",
                                        grad_norm, grad_norm / usual_norm, count)};
  }
  last_was_good_ = verdict.action == Action::take || verdict.action == Action::warn;
  if (last_was_good_) {
    if (finite) {
      losses_.values[steps_ % kWindow] = loss;
      norms_.values[steps_++ % kWindow] = grad_norm;
    }
    in_a_row_ = 0;
  } else if (verdict.action == Action::skip) {
    ++skipped_;
    if (++in_a_row_ > most_skips_)
      verdict = {Action::stop,
                 fmt::format("{}, and train.max_consecutive_skips ({}) are skipped already", verdict.why, most_skips_)};
  }
  return verdict;
}

}  // namespace trivet
