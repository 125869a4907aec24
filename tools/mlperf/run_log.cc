#include "tools/mlperf/run_log.h"

#include <fmt/format.h>
#include <utility>

namespace trivet::mlperf {

using enum EventType;

RunLog::RunLog(Benchmark benchmark, Write write, Clock clock)
    : benchmark_(std::move(benchmark)), write_(std::move(write)), clock_(std::move(clock)) {}

void RunLog::put(EventType type, const char* key, const Json& value, Json metadata, const Where& where) {
  const std::string_view file = where.file_name();
  metadata["file"] = file.substr(file.rfind('/') + 1);
  metadata["lineno"] = where.line();
  const auto now = static_cast<double>(clock_());
  write_(record_line({.time_ms = now, .key = key, .value = value, .metadata = std::move(metadata)}, type));
}

void RunLog::event(const char* key, const Json& value, const Where& where) {
  put(point_in_time, key, value, Json::object(), where);
}

RunLog::Json RunLog::position(int64_t samples) const {
  if (benchmark_.counts_tokens) return {{"epoch_num", samples * sequence_length_}};
  return {{"samples_count", samples}};
}

void RunLog::start(const Submission& submission, bool cleared) {
  event("cache_clear", cleared);
  put(interval_start, "init_start", nullptr, Json::object(), Where::current());
  event("submission_benchmark", benchmark_.name);
  event("submission_org", submission.org);
  event("submission_division", submission.division);
  event("submission_status", submission.status);
  event("submission_platform", submission.platform);
}

void RunLog::describe(const RunDescription& f) {
  sequence_length_ = f.sequence_length;
  const std::string optimizer = benchmark_.constant("opt_name")->get<std::string>();
  const auto of_optimizer = [&](const char* what, double value) {
    event(fmt::format("opt_{}_{}", optimizer, what).c_str(), value);
  };
  event("seed", f.seed);
  event("global_batch_size", f.global_batch_size);
  event("opt_name", optimizer);
  of_optimizer("beta_1", f.beta1);
  of_optimizer("beta_2", f.beta2);
  of_optimizer("epsilon", f.epsilon);
  if (optimizer == "adam") event("opt_weight_decay", f.weight_decay);
  else of_optimizer("weight_decay", f.weight_decay);
  event("opt_gradient_clip_norm", f.clip_norm);
  event("opt_base_learning_rate", f.base_rate);
  event("opt_end_learning_rate", f.end_rate);
  event("opt_learning_rate_warmup_steps", f.warmup_steps);
  // GPT-3's rules count the whole schedule; those of the other benchmarks, only the part after the warm-up.
  event("opt_learning_rate_decay_steps", benchmark_.counts_tokens ? f.decay_steps : f.decay_steps - f.warmup_steps);
  event("opt_learning_rate_decay_schedule", f.decay_schedule);
  event("max_steps", f.most_steps);
  if (benchmark_.starts_from_checkpoint()) event("init_checkpoint_step", f.first_step);
  event("gradient_accumulation_steps", f.gradient_accumulation_steps);
  event("micro_batch_size", f.micro_batch_size);
  event("max_sequence_length", f.sequence_length);
  event("eval_samples", f.eval_samples);
  if (!benchmark_.counts_tokens) event("train_samples", f.train_samples);
  event("target_accuracy", benchmark_.target);
  event("tensor_parallelism", f.tensor);
  event("pipeline_parallelism", f.pipeline);
  event("context_parallelism", f.context);
  event("expert_parallelism", 1);
  event("lowest_numerical_precision_in_linear", f.linear_precision);
  event("lowest_numerical_precision_in_attn", f.attention_precision);
  event("lowest_numerical_precision_in_comm", f.communication_precision);
  event("config_filename", f.config_file);
}

void RunLog::run_start() {
  put(interval_end, "init_stop", nullptr, Json::object(), Where::current());
  put(interval_start, "run_start", nullptr, Json::object(), Where::current());
}

void RunLog::block_start(int64_t samples, int64_t length) {
  block_ = samples;
  Json metadata{{"samples_count", length}};
  if (benchmark_.counts_tokens)
    metadata = {{"first_epoch_num", samples * sequence_length_}, {"epoch_count", length * sequence_length_}};
  put(interval_start, "block_start", nullptr, metadata, Where::current());
}

void RunLog::block_stop(int64_t samples) {
  if (!block_) return;
  Json metadata{{"samples_count", samples - *block_}};
  if (benchmark_.counts_tokens) metadata = {{"first_epoch_num", *block_ * sequence_length_}};
  put(interval_end, "block_stop", nullptr, metadata, Where::current());
  block_.reset();
}

void RunLog::eval_start(int64_t samples) {
  block_stop(samples);
  put(interval_start, "eval_start", nullptr, position(samples), Where::current());
}

void RunLog::eval_accuracy(int64_t samples, double loss) {
  put(point_in_time, "eval_accuracy", loss, position(samples), Where::current());
}

void RunLog::eval_stop(int64_t samples) {
  put(interval_end, "eval_stop", nullptr, position(samples), Where::current());
}

void RunLog::run_stop(int64_t samples, const std::string& reason) {
  block_stop(samples);
  Json metadata = position(samples);
  metadata["status"] = reason.empty() ? "success" : "aborted";
  if (!reason.empty()) metadata["reason"] = reason;
  put(interval_end, "run_stop", nullptr, metadata, Where::current());
  // For GPT-3, train_samples is the number of tokens that the run consumed.
  if (benchmark_.counts_tokens) event("train_samples", samples * sequence_length_);
}

}  // namespace trivet::mlperf
