// The learning rate of a step: linear warm-up, then cosine or linear decay to min_lr, or constant.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "engine/config/config.h"

namespace trivet {

// step counts from 1. Warm-up: lr * step / lr_warmup_iters up to that step. Then, with r running from 0 to 1 between
// the warm-up's end and lr_decay_iters, min_lr + (lr - min_lr) * (cos(pi r) + 1) / 2, as in Megatron; min_lr after.
// REQUIRES: min_lr, lr_warmup_iters and lr_decay_iters are resolved.
inline double learning_rate(const OptimizerConfig& c, int64_t step) {
  const int64_t warmup = c.lr_warmup_iters.value();
  if (step <= warmup) return c.lr * static_cast<double>(step) / static_cast<double>(warmup);
  if (c.lr_decay_style == LrDecay::constant) return c.lr;
  const double min_lr = c.min_lr.value();
  const int64_t decay_iters = c.lr_decay_iters.value();
  if (step >= decay_iters) return min_lr;
  const double r = static_cast<double>(step - warmup) / static_cast<double>(decay_iters - warmup);
  const double remaining = c.lr_decay_style == LrDecay::linear ? 1 - r : 0.5 * (std::cos(std::numbers::pi * r) + 1);
  return min_lr + (c.lr - min_lr) * remaining;
}

}  // namespace trivet
