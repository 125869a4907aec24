// The learning rate of a step: linear warm-up, then cosine or linear decay to min_lr, or constant.
#pragma once

#include <cstdint>

#include "engine/config/config.h"

namespace trivet {

// step counts from 1. Warm-up: lr * step / lr_warmup_iters up to that step. Then, with r running from 0 to 1 between
// the warm-up's end and lr_decay_iters, min_lr + (lr - min_lr) * (cos(pi r) + 1) / 2, as in Megatron; min_lr after.
// REQUIRES: min_lr and lr_decay_iters are resolved.
double learning_rate(const OptimizerConfig& config, int64_t step);

}  // namespace trivet
