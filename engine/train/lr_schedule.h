// The optimizer's schedules, as in Megatron (OptimizerParamScheduler): a step's learning rate and
// weight decay.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "engine/config/config.h"

namespace trivet {

// The fraction of lr - min_lr that remains after a fraction r of the decay.
inline double left_of_decay(const OptimizerConfig& c, double r) {
  const double cosine = 0.5 * (std::cos(std::numbers::pi * r) + 1);
  if (c.lr_decay_style != LrDecay::wsd) return c.lr_decay_style == LrDecay::linear ? 1 - r : cosine;
  switch (c.lr_wsd_decay_style) {
    case WsdDecay::exponential: return 2 * std::pow(0.5, r) - 1;
    case WsdDecay::linear: return 1 - r;
    case WsdDecay::cosine: return cosine;
    case WsdDecay::minus_sqrt: return 1 - std::sqrt(r);
  }
  return 0;
}

// at: the step, counted from 1, or the samples consumed including the step's, in the unit of `span`. Warm-up is linear
// from lr_warmup_init to lr, reached at span.warmup. Then lr decays until span.decay (min_lr afterwards): from the
// end of the warm-up (cosine, linear), over the last span.wsd_decay (WSD, constant before it), or as
// lr * sqrt(warmup / at). lr, min_lr: for decoupled parameters, or for all. REQUIRES: the span is resolved.
inline double learning_rate(const OptimizerConfig& c, const LrSpan& span, int64_t at, double lr, double min_lr) {
  const int64_t warmup = span.warmup.value(), decay = span.decay.value();
  const auto now = static_cast<double>(at), warm = static_cast<double>(warmup);
  if (at <= warmup) return c.lr_warmup_init + (lr - c.lr_warmup_init) * now / warm;
  if (c.lr_decay_style == LrDecay::constant) return lr;
  if (at > decay) return min_lr;
  if (c.lr_decay_style == LrDecay::inverse_square_root)
    return std::max(min_lr, lr * std::sqrt(std::max(warm, 1.0) / now));
  const int64_t begin = c.lr_decay_style == LrDecay::wsd ? decay - span.wsd_decay : warmup;
  if (at <= begin) return lr;
  const double r = static_cast<double>(at - begin) / static_cast<double>(decay - begin);
  return min_lr + (lr - min_lr) * left_of_decay(c, r);
}

struct LearningRates {
  double all = 0, decoupled = 0;  // decoupled: for word embeddings and the output layer
};
inline LearningRates learning_rates(const Config& config, int64_t step, int64_t consumed_samples) {
  const OptimizerConfig& c = config.optimizer;
  const double min_lr = c.min_lr.value();
  const int64_t at = config.train.train_samples > 0 ? consumed_samples : step;
  const auto rate = [&](double lr, double least) { return learning_rate(c, lr_span_of(config), at, lr, least); };
  return {rate(c.lr, min_lr), rate(c.decoupled_lr.value_or(c.lr), c.decoupled_min_lr.value_or(min_lr))};
}

// Ramps from start_weight_decay, before the first step, to end_weight_decay, at the last one.
inline double weight_decay(const Config& config, int64_t step, int64_t consumed_samples) {
  const OptimizerConfig& c = config.optimizer;
  if (c.weight_decay_incr_style == Ramp::constant) return c.weight_decay;
  const TrainConfig& run = config.train;
  const double r = run.train_samples > 0
                       ? static_cast<double>(consumed_samples) / static_cast<double>(run.train_samples)
                       : static_cast<double>(step) / static_cast<double>(run.train_iters);
  const double part = c.weight_decay_incr_style == Ramp::linear ? r : 0.5 * (1 - std::cos(std::numbers::pi * r));
  return *c.start_weight_decay + (*c.end_weight_decay - *c.start_weight_decay) * (r < 1 ? part : 1);
}

}  // namespace trivet
