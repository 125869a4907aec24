// Rules for what changes over a run: batch size, learning rate, weight decay.
#include <fmt/ranges.h>

#include "engine/config/batch_sizes.h"
#include "engine/config/fields.h"
#include "engine/config/rules.h"

namespace trivet {
namespace {

// The keys of an LrSpan and of the run's length, which count steps or samples.
struct SpanKeys {
  std::string_view warmup, decay, wsd_decay, length;
};
constexpr SpanKeys kStepKeys{"optimizer.lr_warmup_iters", "optimizer.lr_decay_iters", "optimizer.lr_wsd_decay_iters",
                             "train.train_iters"};
constexpr SpanKeys kSampleKeys{"optimizer.lr_warmup_samples", "optimizer.lr_decay_samples",
                               "optimizer.lr_wsd_decay_samples", "train.train_samples"};
std::string_view short_name(std::string_view key) { return key.substr(key.find('.') + 1); }

void check_wsd(const OptimizerConfig& o, const LrSpan& span, int64_t decay, const SpanKeys& keys, Rules& rule) {
  const bool wsd = o.lr_decay_style == LrDecay::wsd;
  constexpr auto kOnly = "{} has no effect with lr_decay_style {}, only with WSD";
  rule.no_effect(keys.wsd_decay, {"optimizer.lr_decay_style"}, !wsd && span.wsd_decay != 0, kOnly, span.wsd_decay,
                 word_of(o.lr_decay_style));
  const int64_t warmup = o.lr_warmup_fraction && span.warmup.value_or(0) == 0
                             ? warmup_of_fraction(*o.lr_warmup_fraction, decay)
                             : span.warmup.value_or(decay / 10);
  const int64_t most = decay - warmup;
  const std::string_view warmup_key = span.warmup.value_or(0) == 0 ? "optimizer.lr_warmup_fraction" : keys.warmup;
  rule(warmup_key, {keys.decay, keys.length}, wsd && decay > 0 && most < 1,
       "leaves no step for WSD's decay: found a warm-up of {}, expected less than {} ({})", warmup,
       short_name(keys.decay), decay);
  rule(keys.wsd_decay, {keys.decay, keys.warmup, keys.length},
       wsd && most >= 1 && (span.wsd_decay < 1 || span.wsd_decay > most),
       "found {}, expected 1 to {}: WSD decays after the warm-up, until {} ({})", span.wsd_decay, most,
       short_name(keys.decay), decay);
}

void check_weight_decay(const OptimizerConfig& o, Rules& rule) {
  const bool ramp = o.weight_decay_incr_style != Ramp::constant;
  for (const auto& [key, value] : {std::pair("optimizer.start_weight_decay", o.start_weight_decay),
                                   std::pair("optimizer.end_weight_decay", o.end_weight_decay)}) {
    rule(key, {"optimizer.weight_decay_incr_style"}, ramp && !value,
         "weight_decay_incr_style {} needs both ends of its ramp, start_weight_decay and end_weight_decay",
         word_of(o.weight_decay_incr_style));
  }
  rule.no_effect("optimizer.weight_decay_incr_style", {"optimizer.start_weight_decay", "optimizer.end_weight_decay"},
                 ramp && o.start_weight_decay && o.start_weight_decay == o.end_weight_decay,
                 "{} has no effect: the ramp starts and ends at {}; expected constant, with that as weight_decay",
                 word_of(o.weight_decay_incr_style), o.start_weight_decay.value_or(0));
  rule("optimizer.end_weight_decay", {"optimizer.start_weight_decay"},
       ramp && o.end_weight_decay.value_or(0) < o.start_weight_decay.value_or(0),
       "{} is below start_weight_decay ({}), expected at least that: a ramp does not fall",
       o.end_weight_decay.value_or(0), o.start_weight_decay.value_or(0));
}

void check_warmup(const OptimizerConfig& o, const LrSpan& span, int64_t decay, const SpanKeys& keys, Rules& rule) {
  rule(keys.warmup, {keys.decay, keys.length}, span.warmup.value_or(0) > decay,
       "{} is above {} ({}), expected at most that: the warm-up is the first part of the schedule",
       span.warmup.value_or(0), short_name(span.decay ? keys.decay : keys.length), decay);
  const double fraction = o.lr_warmup_fraction.value_or(0);
  rule.no_effect(
      "optimizer.lr_warmup_fraction", {keys.warmup},
      o.lr_warmup_fraction && span.warmup.value_or(0) != 0 && *span.warmup != warmup_of_fraction(fraction, decay),
      "{} and {} ({}) are two lengths of the warm-up, expected one of them", fraction, short_name(keys.warmup),
      span.warmup.value_or(0));
  rule.no_effect("optimizer.lr_warmup_init", {keys.warmup, "optimizer.lr_warmup_fraction"},
                 o.lr_warmup_init != 0 && fraction == 0 && span.warmup == 0,
                 "{} has no effect without a warm-up ({} 0)", o.lr_warmup_init, short_name(keys.warmup));
  rule("optimizer.lr_warmup_init", {"optimizer.lr"}, o.lr_warmup_init >= o.lr,
       "{} is not below lr ({}), expected less: the warm-up rises to it", o.lr_warmup_init, o.lr);
}

// A run's length is given in steps or in samples, not both, and its schedules use the same unit.
void check_length(const Config& c, Rules& rule) {
  const bool samples = c.train.train_samples > 0;
  rule("train.train_iters", {"train.train_samples"}, !samples && c.train.train_iters == 0 && !c.train.skip_train,
       "is required, or train.train_samples: optimizer steps, an integer from 1 to 1000000000000");
  Config otherwise = c;
  otherwise.train.train_samples = samples ? 0 : 1;
  const LrSpan other = lr_span_of(otherwise);
  const SpanKeys& keys = samples ? kStepKeys : kSampleKeys;
  constexpr auto kNoEffect = "{} has no effect {} train.train_samples";
  const auto unused = [&](std::string_view key, bool given, int64_t value) {
    rule.no_effect(key, {"train.train_samples"}, given, kNoEffect, value, samples ? "with" : "without");
  };
  unused(keys.warmup, other.warmup.value_or(0) != 0, other.warmup.value_or(0));
  unused(keys.decay, other.decay.has_value(), other.decay.value_or(0));
  unused(keys.wsd_decay, other.wsd_decay != 0, other.wsd_decay);
}

void check_optimizer(const Config& c, Rules& rule) {
  const OptimizerConfig& o = c.optimizer;
  const SpanKeys& keys = c.train.train_samples > 0 ? kSampleKeys : kStepKeys;
  const LrSpan span = lr_span_of(c);
  const double min_lr = o.min_lr.value_or(o.lr / 10);
  const int64_t length = c.train.train_samples > 0 ? c.train.train_samples : c.train.train_iters;
  const int64_t decay = span.decay.value_or(length);
  // For a constant schedule, resolve() writes values that change nothing, so they must be accepted when read back.
  const bool constant = o.lr_decay_style == LrDecay::constant;
  constexpr auto kNoEffect = "{} has no effect with lr_decay_style constant, only with cosine or linear";
  rule.no_effect("optimizer.min_lr", {"optimizer.lr", "optimizer.lr_decay_style"},
                 constant && o.min_lr && min_lr != o.lr, kNoEffect, min_lr);
  rule.no_effect(keys.decay, {keys.length, "optimizer.lr_decay_style"}, constant && decay != length, kNoEffect, decay);
  rule("optimizer.min_lr", {"optimizer.lr"}, min_lr > o.lr, "{} is above lr ({}), expected at most that", min_lr, o.lr);
  check_warmup(o, span, decay, keys, rule);
  check_wsd(o, span, decay, keys, rule);
  const double decoupled = o.decoupled_lr.value_or(o.lr);
  const double least = o.decoupled_min_lr.value_or(min_lr);
  rule("optimizer.decoupled_min_lr", {"optimizer.decoupled_lr", "optimizer.lr", "optimizer.min_lr"},
       !constant && (o.decoupled_lr || o.decoupled_min_lr) && least > decoupled,
       "{} is above {} ({}), expected at most that", least, o.decoupled_lr ? "decoupled_lr" : "lr", decoupled);
  rule.no_effect("optimizer.decoupled_min_lr", {"optimizer.lr_decay_style"},
                 constant && o.decoupled_min_lr && least != decoupled, kNoEffect, least);
  check_weight_decay(o, rule);
  rule("optimizer.use_checkpoint_opt_param_scheduler", {"optimizer.override_opt_param_scheduler"},
       o.use_checkpoint_opt_param_scheduler && o.override_opt_param_scheduler,
       "excludes override_opt_param_scheduler, which is also true");
}

void check_batch_sizes(const Config& c, Rules& rule) {
  const BatchConfig& b = c.batch;
  const bool ramp = b.rampup_batch_size.has_value(), steps = !b.step_batch_size_schedule.empty();
  constexpr auto kRamp = "batch.rampup_batch_size", kSteps = "batch.step_batch_size_schedule";
  constexpr auto kNeeds = "needs train.train_samples: if the batch size changes, a run is measured in samples";
  rule(kRamp, {}, ramp && b.rampup_batch_size->size() != 3, "found \"{}\", expected {}",
       fmt::format("{}", fmt::join(b.rampup_batch_size.value_or(std::vector<int64_t>{}), ",")),
       expected(*find_field(kRamp)));
  rule.no_effect(kRamp, {kSteps}, ramp && steps, "excludes step_batch_size_schedule, which is also given");
  rule.no_effect(kRamp, {"train.train_samples"}, ramp && c.train.train_samples == 0, kNeeds);
  rule.no_effect(kSteps, {"train.train_samples"}, steps && c.train.train_samples == 0, kNeeds);
  constexpr int64_t kMostParts = 10'000;
  const int64_t step = ramp && b.rampup_batch_size->size() == 3 ? std::max<int64_t>((*b.rampup_batch_size)[1], 1) : 1;
  const int64_t parts = ramp ? (b.global_batch_size.value_or(0) - b.rampup_batch_size->front()) / step : 0;
  rule(kRamp, {"batch.global_batch_size"}, parts > kMostParts,
       "has {} sizes up to global_batch_size, expected at most {}: use a larger increment", parts, kMostParts);
  const auto sizes = parse_batch_size_schedule(b.step_batch_size_schedule, c.model.seq_length);
  rule(kSteps, {"model.seq_length"}, steps && !sizes,
       "found \"{}\", expected tokens:samples … such as \"0:768 250B:1536\": tokens from 0, each at least a sample "
       "({}) above the last, and 1 to {} samples",
       b.step_batch_size_schedule, c.model.seq_length, kMostBatchSamples);
  rule(kSteps, {},
       sizes && std::ranges::all_of(sizes->parts, [&](auto& part) { return part.samples == sizes->largest(); }),
       "has one size, {}; expected a second one, or global_batch_size set to that one", sizes ? sizes->largest() : 0);
  rule("batch.global_batch_size", {kSteps}, sizes && b.global_batch_size.value_or(sizes->largest()) != sizes->largest(),
       "{} is not the largest of step_batch_size_schedule ({}); leave it out", b.global_batch_size.value_or(0),
       sizes ? sizes->largest() : 0);
}

}  // namespace

void check_schedules_over_steps(const Config& config, Rules& rule) {
  check_length(config, rule);
  check_batch_sizes(config, rule);
  check_optimizer(config, rule);
}

}  // namespace trivet
