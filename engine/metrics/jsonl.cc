#include "engine/metrics/jsonl.h"

#include <nlohmann/json.hpp>

namespace trivet {

MetricsLog::MetricsLog(std::string path, AppendFile::Warn warn)
    : file_(std::move(path), AppendFile::Start::keep, std::move(warn)) {}

void MetricsLog::step(const StepReport& r) {
  const nlohmann::ordered_json line = {
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
      {"exposed_comm_fraction", r.exposed_comm_fraction},
      {"exposed_tensor_fraction", r.exposed_tensor_fraction},
      {"exposed_pipeline_fraction", r.exposed_pipeline_fraction},
      {"exposed_data_fraction", r.exposed_data_fraction},
      {"overlap_ratio", r.overlap_ratio},
  };
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

}  // namespace trivet
