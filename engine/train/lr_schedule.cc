#include "engine/train/lr_schedule.h"

#include <cmath>
#include <numbers>

namespace trivet {

double learning_rate(const OptimizerConfig& c, int64_t step) {
  if (step <= c.lr_warmup_iters) return c.lr * static_cast<double>(step) / static_cast<double>(c.lr_warmup_iters);
  if (c.lr_decay_style == LrDecay::constant) return c.lr;
  const double min_lr = c.min_lr.value();
  const int64_t decay_iters = c.lr_decay_iters.value();
  if (step >= decay_iters) return min_lr;
  const double r = static_cast<double>(step - c.lr_warmup_iters) / static_cast<double>(decay_iters - c.lr_warmup_iters);
  const double remaining = c.lr_decay_style == LrDecay::linear ? 1 - r : 0.5 * (std::cos(std::numbers::pi * r) + 1);
  return min_lr + (c.lr - min_lr) * remaining;
}

}  // namespace trivet
