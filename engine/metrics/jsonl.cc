#include "engine/metrics/jsonl.h"

#include <nlohmann/json.hpp>
#include <string>

namespace trivet {

MetricsLog::MetricsLog(std::string path, AppendFile::Warn warn)
    : file_(std::move(path), AppendFile::Start::keep, std::move(warn)) {}

void MetricsLog::step(const StepReport& r) {
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
      {"compute_fraction", r.compute_fraction},
      {"optimizer_fraction", r.optimizer_fraction},
      {"exposed_comm_fraction", r.exposed_wire_fraction + r.exposed_wait_fraction},
      {"exposed_wire_fraction", r.exposed_wire_fraction},
      {"exposed_wait_fraction", r.exposed_wait_fraction},
      {"host_fraction", r.host_fraction},
      {"idle_fraction", r.idle_fraction},
      {"overlap_ratio", r.overlap_ratio},
  };
  for (size_t k = 0; k < kCommClasses.size(); ++k) {
    const std::string name = "exposed_" + std::string(kCommClasses[k]);
    line[name + "_wire_fraction"] = r.class_wire_fraction[k];
    line[name + "_wait_fraction"] = r.class_wait_fraction[k];
  }
  file_.append(line.dump() + '\n');
}

void MetricsLog::eval(const EvalReport& r) {
  const nlohmann::ordered_json line = {{"event", "eval"},
                                       {"step", r.step},
                                       {"validation_loss", r.validation_loss},
                                       {"samples", r.samples},
                                       {"seconds", r.seconds}};
  file_.append(line.dump() + '\n');
}

void MetricsLog::resume(int64_t step, const std::string& checkpoint) {
  const nlohmann::ordered_json line = {{"event", "resume"}, {"step", step}, {"checkpoint", checkpoint}};
  // The name of a folder need not be UTF-8.
  file_.append(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n');
}

void MetricsLog::save(const SaveReport& r) {
  const nlohmann::ordered_json line = {{"event", "checkpoint"},
                                       {"step", r.step},
                                       {"bytes", r.bytes},
                                       {"stall_seconds", r.stall_seconds},
                                       {"seconds", r.seconds}};
  file_.append(line.dump() + '\n');
}

}  // namespace trivet
