// Correct logs of MLPerf runs, in the styles of different submitters. Their numbers come from the rules' text, not
// from tools/mlperf/rules.cc.
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tools/mlperf/log.h"

namespace trivet::mlperf {

struct LogStyle {
  bool epochs = true;                   // epoch_start, epoch_stop
  bool blocks = true;                   // block_start, block_stop
  bool one_block = false;               // a single block for the whole run
  bool block_lengths = false;           // samples_count is the block's length, not a position
  bool eval_intervals = true;           // eval_start, eval_stop
  bool late_train_samples = false;      // train_samples is logged after run_stop
  bool tokens_in_eval_samples = false;  // GPT-3: eval_samples counts tokens, not sequences
  bool skips = false;                   // skips the evaluations that may be skipped
  bool many_ranks = false;              // init_start and cache_clear for each rank, not in time order
  bool noisy = false;                   // other output, prefixes, tracked_stats
  bool aborted = false;
};

struct SyntheticLine {
  Record record;
  EventType type = EventType::point_in_time;
  std::string foreign = {};  // text in place of a record
};

class SyntheticLog {
 public:
  std::vector<SyntheticLine> lines;
  std::string prefix = {};  // starts every record's line

  // ---- changes to the first line with the key
  size_t index(const std::string& key) const {
    for (size_t i = 0; i < lines.size(); ++i)
      if (lines[i].record.key == key) return i;
    throw std::out_of_range("the log has no " + key);
  }
  Record& of(const std::string& key) { return lines[index(key)].record; }
  std::vector<Record*> all(const std::string& key) {
    std::vector<Record*> found;
    for (SyntheticLine& line : lines)
      if (line.record.key == key) found.push_back(&line.record);
    return found;
  }
  void set(const std::string& key, const nlohmann::json& value) { of(key).value = value; }
  void erase(const std::string& key) { lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(index(key))); }
  void add(const std::string& key, const nlohmann::json& value) {  // among the hyperparameters
    SyntheticLine line = lines[index("seed")];
    line.record.key = key, line.record.value = value;
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(index("seed")), line);
  }
  void print(const std::string& text) { lines.insert(lines.begin(), {{}, EventType::point_in_time, text}); }
  // Delays the first line with the key, and all lines after it.
  void delay(const std::string& key, double ms) {
    for (size_t i = index(key); i < lines.size(); ++i) lines[i].record.time_ms += ms;
  }

  std::string text() const {
    std::string text;
    for (const SyntheticLine& line : lines)
      text += !line.foreign.empty() ? line.foreign + '\n' : prefix + record_line(line.record, line.type);
    return text;
  }
};

// Writes a log: see make_log().
class LogWriter {
 public:
  LogWriter(const std::string& benchmark, const std::string& round, int64_t batch, int64_t evaluations,
            const LogStyle& style, int seed)
      : benchmark_(benchmark), round_(round), batch_(batch), evaluations_(evaluations), style_(style), seed_(seed) {
    const int64_t cadence = gpt3_ ? 24'576 : !large_ ? 12'288 : round == "5.0" ? 46'080 : 18'432;
    interval_ = ((cadence - 1) / batch + 1) * batch;
  }

  SyntheticLog log;

  void begin_run() {
    const double start = time_ = 1'700'000'000'000 + 1000.0 * seed_;
    for (int rank = 0; rank < (style_.many_ranks ? 6 : 1); ++rank) {
      time_ = start + 137 * ((rank * 5) % 6);
      point("cache_clear", true);
      begin("init_start");
    }
    time_ = start + 20'000;
    point("submission_benchmark", benchmark_);
    point("submission_org", "Trivet");
    point("submission_division", "closed");
    point("submission_status", "onprem");
    point("submission_platform", "8xCPU");
    point("seed", 1000 + seed_);
    point("global_batch_size", batch_);
  }

  void optimizer() {
    const auto b = static_cast<double>(batch_);
    const std::string adam = gpt3_ ? "adam" : "adamw";
    const double rate = gpt3_ ? (batch_ < 4000 ? 2e-5 : 3e-5) : large_ ? b * 8e-5 / 1152 : 4e-4;
    point("opt_name", adam);
    point("opt_base_learning_rate", rate);
    point("opt_end_learning_rate", large_ ? 8e-7 : 0.1 * rate);
    point("opt_" + adam + "_beta_1", 0.9);
    point("opt_" + adam + "_beta_2", 0.95);
    point("opt_" + adam + "_epsilon", gpt3_ ? 1e-8 : 1e-5);
    point(gpt3_ ? "opt_weight_decay" : "opt_adamw_weight_decay", 0.1);
    const double warmup = gpt3_ ? std::ceil(407'040 / b) : large_ ? std::ceil(9'216'000 / b) : 256;
    const double end = gpt3_ ? std::ceil(166'809'600 / b) : large_ ? std::ceil(1'382'400'000 / b) : 1'200'000;
    point("opt_learning_rate_warmup_steps", warmup);
    point("opt_learning_rate_decay_steps", gpt3_ ? end : end - warmup);
    point("opt_learning_rate_decay_schedule", "cosine with linear warmup");
    point("opt_gradient_clip_norm", 1.0);
    if (gpt3_) point("init_checkpoint_step", std::ceil(6'144'000 / b));
    else if (large_) point("init_checkpoint_step", 0);
    else point("max_steps", 1'200'000);
  }

  void sizes() {
    point("gradient_accumulation_steps", 2);
    point("max_sequence_length", gpt3_ ? 2048 : 8192);
    const int gpt3_samples = style_.tokens_in_eval_samples ? 11'590'004 : 24'567;
    point("eval_samples", gpt3_ ? gpt3_samples : large_ ? 5760 : 1024);
    if (!style_.late_train_samples) train_samples();
    if (round_ < "6.0") return;
    for (const char* part : {"linear", "attn", "comm"})
      point(std::string("lowest_numerical_precision_in_") + part, "bfloat16");
    for (const char* axis : {"tensor", "pipeline", "context", "expert"}) point(std::string(axis) + "_parallelism", 1);
    point("micro_batch_size", batch_ / 8);
    point("config_filename", "run.yaml");
  }

  void train() {
    time_ += 300'000;
    end("init_stop");
    time_ += 3;
    begin("run_start");
    if (style_.epochs) begin("epoch_start", position(0));
    const bool skips = style_.skips && large_ && round_ != "5.0";
    int64_t last = 0;
    for (int64_t i = skips ? static_cast<int64_t>(0.0026 * static_cast<double>(batch_) + 13) : 1; i <= evaluations_;
         ++i) {
      train_block(last, i * interval_);
      evaluate(i);
      last = i * interval_;
    }
    time_ += 400;
    if (style_.blocks && style_.one_block) end("block_stop", {{gpt3_ ? "first_epoch_num" : "samples_count", 0}});
    end("run_stop", {{"status", style_.aborted ? "aborted" : "success"}});
    if (style_.late_train_samples) train_samples();
    if (style_.epochs) end("epoch_stop", position(last));
  }

 private:
  using Metadata = nlohmann::json;

  void line(const std::string& key, const nlohmann::json& value, EventType type, Metadata metadata) {
    metadata["file"] = "train.py", metadata["lineno"] = key == "seed" ? 42 : 100 + log.lines.size() % 7;
    log.lines.push_back({{.line = 0, .time_ms = time_, .key = key, .value = value, .metadata = metadata}, type});
  }
  void point(const std::string& key, const nlohmann::json& value, const Metadata& metadata = Metadata::object()) {
    line(key, value, EventType::point_in_time, metadata);
  }
  void begin(const std::string& key, const Metadata& metadata = Metadata::object()) {
    line(key, nullptr, EventType::interval_start, metadata);
  }
  void end(const std::string& key, const Metadata& metadata = Metadata::object()) {
    line(key, nullptr, EventType::interval_end, metadata);
  }
  Metadata position(int64_t sequences) const {
    return gpt3_ ? Metadata{{"epoch_num", 2048 * sequences}} : Metadata{{"samples_count", sequences}};
  }
  void train_samples() { point("train_samples", gpt3_ ? 2048 * evaluations_ * interval_ : 1'574'207'408); }

  void train_block(int64_t from, int64_t to) {
    const Metadata block = gpt3_ ? Metadata{{"epoch_count", 2048 * (to - from)}, {"first_epoch_num", 2048 * from}}
                                 : Metadata{{"samples_count", style_.block_lengths ? to - from : from}};
    if (style_.blocks && (!style_.one_block || from == 0)) begin("block_start", block);
    time_ += static_cast<double>(to - from) * (9 + 0.1 * static_cast<double>(to % 3)) * (from == 0 ? 1.6 : 1);
    if (style_.noisy) point("tracked_stats", {{"throughput", 30.5}}, {{"step", to}});
    if (style_.blocks && !style_.one_block) end("block_stop", block);
  }

  void evaluate(int64_t number) {
    const double target = gpt3_ ? 2.69 : large_ ? 5.6 : 3.3;
    const auto left = static_cast<double>(evaluations_ - number);
    const bool hit = left == 0 && !style_.aborted;
    if (style_.eval_intervals) begin("eval_start", position(number * interval_));
    time_ += 5000;
    const double loss = hit ? target - 0.001 : target + 0.01 * (left + 1) + 1e-5 * seed_;
    point("eval_accuracy", loss, position(number * interval_));
    if (style_.eval_intervals) end("eval_stop", position(number * interval_));
  }

  const std::string benchmark_, round_;
  const int64_t batch_, evaluations_;
  const LogStyle style_;
  const int seed_;
  const bool gpt3_ = benchmark_ == "gpt3", large_ = benchmark_ == "llama31_405b";
  int64_t interval_ = 0;
  double time_ = 0;
};

// A run that reaches the target at its evaluation number `evaluations`, counting those that it skips. seed: the run's
// seed, which also shifts its losses.
inline SyntheticLog make_log(const std::string& benchmark, const std::string& round, int64_t batch, int64_t evaluations,
                             const LogStyle& style = {}, int seed = 1) {
  LogWriter writer(benchmark, round, batch, evaluations, style, seed);
  writer.begin_run();
  writer.optimizer();
  writer.sizes();
  writer.train();
  if (style.noisy) {
    writer.log.print("setting number of micro-batches to constant 2");
    writer.log.print("  global_batch_size ............................... " + std::to_string(batch));
    writer.log.print("[NeMo W 2025-06-18 16:51:39] ::MLLOG is not here ... \xff { \"key\"");
    writer.log.prefix = "0: [2025-06-18] ";
  }
  return writer.log;
}

}  // namespace trivet::mlperf
