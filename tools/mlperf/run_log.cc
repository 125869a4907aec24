#include "tools/mlperf/run_log.h"

#include <fmt/format.h>
#include <utility>

namespace trivet::mlperf {

using enum EventType;

RunLog::RunLog(Benchmark benchmark, Write write, Clock clock)
    : benchmark_(std::move(benchmark)), write_(std::move(write)), clock_(std::move(clock)) {}

void RunLog::put(EventType type, const std::string& key, const Json& value, Json metadata, const Where& where) {
  const std::string_view file = where.file_name();
  metadata["file"] = file.substr(file.rfind('/') + 1);
  metadata["lineno"] = where.line();
  const auto now = static_cast<double>(clock_());
  write_(record_line({.time_ms = now, .key = key, .value = value, .metadata = std::move(metadata)}, type));
}

void RunLog::event(const std::string& key, const Json& value, const Where& where) {
  put(point_in_time, key, value, Json::object(), where);
}

RunLog::Json RunLog::position(int64_t samples) const {
  if (benchmark_.counts_tokens) return {{"epoch_num", samples * sequence_length_}};
  return {{"samples_count", samples}};
}

void RunLog::start(const Description& submission, bool cleared) {
  event("cache_clear", cleared);
  put(interval_start, "init_start", nullptr, Json::object(), Where::current());
  event("submission_benchmark", benchmark_.name);
  for (const auto& [key, value] : submission.items()) event(key, value);
}

void RunLog::describe(const Description& run) {
  sequence_length_ = run.at("max_sequence_length").get<int64_t>();
  for (const auto& [key, value] : run.items()) event(key, value);
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
