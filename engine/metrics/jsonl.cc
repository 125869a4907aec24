#include "engine/metrics/jsonl.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/host.h"
#include "base/json.h"

namespace trivet {
namespace {

// Replaces invalid UTF-8, which a folder's name may contain.
std::string text_of(nlohmann::ordered_json line) {
  line["time"] = std::round(unix_seconds() * 1e3) / 1e3;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

// True if the file contains more than the start events and notes of runs without steps.
bool has_results(const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (!line.starts_with(R"({"event":"start")") && !line.starts_with(R"({"event":"note")")) return true;
  return false;
}

int64_t step_in(const std::string& record) {  // -1: none
  constexpr std::string_view kKey = "\"step\":";
  const size_t at = record.find(kKey);
  int64_t found = -1;
  if (at != std::string::npos) std::from_chars(record.data() + at + kKey.size(), record.data() + record.size(), found);
  return found;
}

// True if a resumed run rewrites this record.
bool is_redone(const std::string& record, const RunBegin& run) {
  const int64_t step = step_in(record);
  return step > run.step || (run.evaluates_again && step == run.step && record.starts_with(R"({"event":"eval")"));
}

// Means over the ranks.
void put_class(nlohmann::ordered_json& line, const StepReport& r, size_t k) {
  const std::string name(kCommClasses[k]);
  const auto mean = [&](int64_t sum) {
    return r.stats.window == 0 ? StepReport::kUnknown : static_cast<double>(sum) / r.ranks;
  };
  line[name + "_wire_bytes"] = mean(r.stats.wire_bytes[k]);
  line[name + "_floor_seconds"] = r.links[k] ? mean(r.stats.floor[k]) * 1e-9 : StepReport::kUnknown;
  line[name + "_wire_seconds"] = mean(r.stats.wire[k]) * 1e-9;
  line[name + "_exposed_seconds"] = mean(r.stats.exposed[k]) * 1e-9;
  line[name + "_wait_seconds"] = mean(r.stats.wait[k]) * 1e-9;
}

nlohmann::ordered_json line_of(const StepReport& r) {
  const StepStats& s = r.stats;
  const int64_t exposed = StepStats::sum(s.exposed), wait = StepStats::sum(s.wait);
  const auto seconds = [&](int64_t sum) {
    return s.window == 0 ? StepReport::kUnknown : static_cast<double>(sum) * 1e-9 / r.ranks;
  };
  nlohmann::ordered_json line = {
      {"step", r.step},
      {"consumed_samples", r.consumed_samples},
      {"consumed_tokens", r.consumed_tokens},
      {"loss", r.loss},
      {"grad_norm", r.grad_norm},
      {"learning_rate", r.learning_rate},
      {"step_seconds", r.step_seconds},
      {"tokens_per_second", r.tokens_per_second},
      {"model_tflops_per_rank", r.model_tflops_per_rank},
      {"mfu", r.mfu},
      {"bubble_fraction", r.bubble_fraction},
      {"compute_fraction", s.of_window(s.compute)},
      {"optimizer_fraction", s.of_window(s.optimizer)},
      {"exposed_fraction", s.of_window(exposed)},
      {"wait_fraction", s.of_window(wait)},
      {"host_fraction", s.of_window(s.host)},
      {"idle_fraction", s.of_window(s.idle)},
      {"compute_seconds", seconds(s.compute)},
      {"exposed_seconds", seconds(exposed)},
      {"wait_seconds", seconds(wait)},
      {"idle_seconds", seconds(s.idle)},
      {"overlap_ratio", s.overlap_ratio().value_or(StepReport::kUnknown)},
  };
  if (r.mfu_in_documents) line["mfu_in_documents"] = *r.mfu_in_documents;
  if (r.gpus) {
    line["power_watts"] = r.gpus->power_watts;
    line["energy_joules_per_token"] = r.gpus->energy_joules_per_token;
    line["sm_clock_mhz"] = r.gpus->sm_clock_mhz;
    line["gpus_slowed_by_power"] = r.gpus->slowed_by_power;
    line["gpus_slowed_by_heat"] = r.gpus->slowed_by_heat;
  }
  if (r.batch_size) line["batch_size"] = *r.batch_size;
  if (r.weight_decay) line["weight_decay"] = *r.weight_decay;
  if (r.decoupled_learning_rate) line["decoupled_learning_rate"] = *r.decoupled_learning_rate;
  for (size_t k = 0; k < kCommClasses.size(); ++k) put_class(line, r, k);
  return line;
}

}  // namespace

std::vector<std::string> step_metric_names() {
  const nlohmann::ordered_json line = line_of({});
  std::vector<std::string> names;
  for (const auto& [name, value] : line.items())
    if (name != "step") names.push_back(name);
  return names;
}

std::string set_aside(const std::string& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file) || std::filesystem::file_size(file) == 0) return {};
  const std::filesystem::path path = file;
  std::string aside;
  for (int number = 1; aside.empty() || std::filesystem::exists(std::filesystem::symlink_status(aside)); ++number)
    aside = (path.parent_path() / path.stem()).string() + fmt::format(".{}", number) + path.extension().string();
  std::filesystem::rename(path, aside, error);
  if (error) throw IoError(fmt::format("{}: cannot be renamed to {}: {}", file, aside, error.message()));
  return aside;
}

MetricsLog::MetricsLog(std::string path, AppendFile::Warn warn, double patience_s, Hear hear)
    : path_(std::move(path)), warn_(std::move(warn)), patience_s_(patience_s), hear_(std::move(hear)) {
  open();
}

MetricsLog::~MetricsLog() {
  if (const size_t lost = queue_->close().size(); lost > 0 && warn_)
    warn_(fmt::format("{}: {} records are missing at its end", path_, lost));
}

void MetricsLog::open() {
  const auto file = std::make_shared<AppendFile>(path_, AppendFile::Start::keep, warn_, "config.resolved.yaml");
  const auto write = [file](const std::string& lines) { return file->append(lines, true); };
  const auto gap = [](int64_t lines) { return text_of({{"event", "gap"}, {"missing_records", lines}}); };
  queue_.emplace(SinkQueue::Sink{.write = write, .gap = gap, .patience_s = patience_s_});
}

std::string MetricsLog::begin(const RunBegin& run) {
  flush();
  std::error_code ignored;
  const bool anew = !run.goes_on && has_results(path_);
  const std::string aside = anew ? set_aside(path_) : "";
  if (!aside.empty()) open();
  else if (!run.goes_on) std::filesystem::resize_file(path_, 0, ignored);  // an earlier start ran no steps
  nlohmann::ordered_json event = {{"event", run.checkpoint.empty() ? "start" : "resume"}, {"step", run.step}};
  if (!run.checkpoint.empty()) event["checkpoint"] = run.checkpoint;
  event.update({{"total_steps", run.total_steps},
                {"ranks", run.ranks},
                {"start_seconds", run.start_seconds},
                {"host", host_name()},
                {"program", run.program},
                {"peak_tflops", run.peak_tflops},
                {"peak_origin", run.peak_origin},
                {"banner", run.banner}});
  for (const char* job : {"SLURM_JOB_ID", "PBS_JOBID"})
    if (const char* const id = std::getenv(job)) event["job"] = id;
  const std::string again = remove_redone(run);
  append(event);
  begun_ = true;
  for (const std::string& line : std::exchange(early_notes_, {})) note(line);
  return aside.empty() ? again : fmt::format("{} was an earlier run's and is now {}", path_, aside);
}

// Returns a message that names the repeated steps.
std::string MetricsLog::remove_redone(const RunBegin& run) {
  step_ = run.step;
  int64_t last = 0;  // last step in the records to be rewritten
  try {
    if (!std::filesystem::is_regular_file(path_)) return {};
    for_each_line(path_, [&](const std::string& record, int64_t) {
      if (is_redone(record, run)) last = std::max(last, step_in(record));
    });
    if (last == 0) return {};
    OutputFile kept(path_);
    for_each_line(path_, [&](const std::string& record, int64_t) {
      if (!is_redone(record, run)) kept.write(record + '\n');
    });
    kept.commit();
    open();
  } catch (const std::exception& failure) {
    if (warn_) warn_(fmt::format("{}: the records after step {} stay in it: {}", path_, run.step, failure.what()));
    return {};
  }
  return last == run.step
             ? ""
             : fmt::format("steps {} to {} were done but not saved: they are repeated", run.step + 1, last);
}

void MetricsLog::step(const StepReport& r) {
  step_ = r.step;
  append(line_of(r));
}

void MetricsLog::evaluation(const EvalReport& r) {
  nlohmann::ordered_json event = {{"event", "eval"},      {"step", r.step},     {r.set + "_loss", r.loss},
                                  {"samples", r.samples}, {"tokens", r.tokens}, {"seconds", r.seconds}};
  if (!r.checkpoint.empty()) event["checkpoint"] = r.checkpoint;
  append(event);
}

void MetricsLog::save(const SaveReport& r) {
  append({{"event", "checkpoint"},
          {"step", r.step},
          {"bytes", r.bytes},
          {"stall_seconds", r.stall_seconds},
          {"seconds", r.seconds}});
}

void MetricsLog::walltime(const WallTimeReport& r) {
  append({{"event", "walltime"},
          {"step", step_},
          {"walltime_seconds", r.seconds},
          {"lead_seconds", r.lead_seconds},
          {"text", r.text}});
}

void MetricsLog::note(const std::string& line) {
  if (begun_) append({{"event", "note"}, {"step", step_}, {"text", line}});
  else early_notes_.push_back(line);
}

void MetricsLog::end(const std::vector<TextBlock>& times) {
  append({{"event", "end"}, {"step", step_}, {"times", render(times)}});
}

void MetricsLog::append(const nlohmann::ordered_json& line) {
  queue_->push(text_of(line));
  if (hear_) hear_(line);
}

std::string for_each_step(const std::string& path, const std::function<void(StepNumbers numbers)>& each,
                          const std::function<void(const nlohmann::ordered_json& record)>& event, int64_t most_bytes) {
  if (!std::filesystem::exists(path)) return "the run wrote no metrics.jsonl";
  const int64_t begin = std::max<int64_t>(0, InputFile(path).size() - most_bytes);
  std::ifstream file(path, std::ios::binary);
  std::string problem, line;
  int64_t at = 0;
  for (int64_t number = 1; std::getline(file, line) && !file.eof(); ++number) {
    at += std::ssize(line) + 1;
    if (at <= begin && !line.starts_with(R"({"event")")) continue;
    const auto record = parse_json<nlohmann::ordered_json>(line, BadJson::discarded);
    if (!record.is_object()) {
      problem = fmt::format("metrics.jsonl:{}: is not an object", number);
    } else if (record.contains("event") || !std::isfinite(number_in(record, "step"))) {
      if (event) event(record);
    } else {
      StepNumbers numbers{{"loss", std::nan("")}};
      for (const auto& [key, value] : record.items())
        if (value.is_number()) numbers[key] = value.get<double>();
      each(std::move(numbers));
    }
  }
  return problem;
}

double number_in(const nlohmann::ordered_json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number() ? found->get<double>() : std::nan("");
}

std::string text_in(const nlohmann::ordered_json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace trivet
