#include "engine/metrics/jsonl.h"

#include <nlohmann/json.hpp>

namespace trivet {

MetricsLog::MetricsLog(std::string path, AppendFile::Warn warn)
    : file_(std::move(path), AppendFile::Start::keep, std::move(warn)) {}

void MetricsLog::step(const StepReport& r) {
  const auto share = [&](int64_t ns) { return r.stats.of_window(ns); };
  const double wire = share(StepStats::sum(r.stats.exposed_wire)), wait = share(StepStats::sum(r.stats.exposed_wait));
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
      {"compute_fraction", share(r.stats.compute)},
      {"optimizer_fraction", share(r.stats.optimizer)},
      {"exposed_comm_fraction", wire + wait},
      {"exposed_wire_fraction", wire},
      {"exposed_wait_fraction", wait},
      {"host_fraction", share(r.stats.host)},
      {"idle_fraction", share(r.stats.idle)},
      {"overlap_ratio", r.stats.overlap_ratio().value_or(StepReport::kUnknown)},
  };
  for (size_t k = 0; k < kCommClasses.size(); ++k) {
    const std::string name = "exposed_" + std::string(kCommClasses[k]);
    line[name + "_wire_fraction"] = share(r.stats.exposed_wire[k]);
    line[name + "_wait_fraction"] = share(r.stats.exposed_wait[k]);
  }
  append(line);
}

void MetricsLog::eval(const EvalReport& r) {
  append({{"event", "eval"},
          {"step", r.step},
          {"validation_loss", r.validation_loss},
          {"samples", r.samples},
          {"seconds", r.seconds}});
}

void MetricsLog::resume(int64_t step, const std::string& checkpoint) {
  append({{"event", "resume"}, {"step", step}, {"checkpoint", checkpoint}});
}

void MetricsLog::save(const SaveReport& r) {
  append({{"event", "checkpoint"},
          {"step", r.step},
          {"bytes", r.bytes},
          {"stall_seconds", r.stall_seconds},
          {"seconds", r.seconds}});
}

// The name of a folder need not be UTF-8.
void MetricsLog::append(const nlohmann::ordered_json& line) {
  file_.append(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n');
}

}  // namespace trivet
