#include "engine/train/number_check.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <vector>

#include "base/statistics.h"

namespace trivet {

NumberCheck::NumberCheck(const TrainConfig& config)
    : check_finite_(config.check_for_nan_in_loss_and_grad),
      skip_non_finite_(config.non_finite_policy == StepAction::skip),
      most_skips_(config.max_consecutive_skips),
      spike_factor_(config.spike_factor),
      on_spike_(config.spike_policy) {}

double NumberCheck::spike(const History& history) const {
  const size_t count = std::min(steps_, kWindow);
  if (spike_factor_ == 0 || count < kFewest) return std::numeric_limits<double>::infinity();
  return spike_factor_ * upper_median(std::vector(history.begin(), history.begin() + static_cast<int64_t>(count)));
}

NumberCheck::Limits NumberCheck::limits() const {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (on_spike_ == Action::warn) return {kNone, kNone, check_finite_};
  return {loss_spike(), norm_spike(), check_finite_};
}

NumberCheck::Verdict NumberCheck::judge(const Numbers& numbers) {
  const auto& [loss, grad_norm, finite, taken, counts] = numbers;
  Verdict verdict;
  if (finite && !counts) {
    ++skipped_;
    return {Action::skip, "no label of the batch counts"};
  }
  if (!finite) {
    if (!taken) verdict = {skip_non_finite_ ? Action::skip : Action::stop, "not finite"};
  } else if (!taken || loss > loss_spike() || grad_norm > norm_spike()) {
    // The device compares in fp32, and its decision is final.
    const size_t count = std::min(steps_, kWindow);
    const bool by_loss = loss / loss_spike() >= grad_norm / norm_spike();
    const double value = by_loss ? loss : grad_norm, limit = by_loss ? loss_spike() : norm_spike();
    if (taken == (on_spike_ == Action::warn))
      verdict = {on_spike_,
                 fmt::format("a spike: the {} is {:.6g}, {:.1f} times the median of the last {} steps",
                             by_loss ? "loss" : "gradient norm", value, spike_factor_ * value / limit, count)};
  }
  last_was_good_ = verdict.action == Action::take || verdict.action == Action::warn;
  if (last_was_good_) {
    if (finite) {
      losses_[steps_ % kWindow] = loss;
      norms_[steps_++ % kWindow] = grad_norm;
    }
    in_a_row_ = 0;
  } else if (verdict.action == Action::skip) {
    ++skipped_;
    if (++in_a_row_ > most_skips_)
      verdict = {Action::stop, fmt::format("{}, and train.max_consecutive_skips ({}) steps have been skipped already",
                                           verdict.why, most_skips_)};
  }
  return verdict;
}

}  // namespace trivet
