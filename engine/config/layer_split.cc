#include <fmt/format.h>

#include "engine/config/validate.h"
#include "kernels/base/check.h"

namespace trivet {

std::vector<int64_t> split_layers(const LayerSplit& s) {
  if (s.stages == 1) {
    if (s.first_layers || s.last_layers)
      throw ConfigError(
          "parallel.decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers need more than "
          "one pipeline stage");
    if (s.account_for_embedding || s.account_for_loss)
      throw ConfigError(
          "parallel.account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split need more than "
          "one pipeline stage: there is nothing to split");
    return {s.num_layers};
  }
  if ((s.first_layers || s.last_layers) && (s.account_for_embedding || s.account_for_loss))
    throw ConfigError(
        "parallel.decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers exclude "
        "account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split: both say what "
        "the first and last stages hold");
  // Stages that share what the ends leave, evenly.
  const int64_t even_stages = s.stages - (s.first_layers ? 1 : 0) - (s.last_layers ? 1 : 0);
  const int64_t units = s.num_layers - s.first_layers.value_or(0) - s.last_layers.value_or(0) +
                        (s.account_for_embedding ? 1 : 0) + (s.account_for_loss ? 1 : 0);
  if (units < 0 || (even_stages == 0 && units != 0))
    throw ConfigError(
        fmt::format("parallel: the first and last pipeline stages hold {} and {} layers, but the model "
                    "has {}",
                    s.first_layers.value_or(0), s.last_layers.value_or(0), s.num_layers));
  if (even_stages > 0 && (units % even_stages != 0 || units == 0)) {
    int64_t fewer = s.num_layers - units % even_stages;
    if (units < even_stages || fewer < 1) fewer += even_stages;  // else a stage, or the model, would have no layer
    throw ConfigError(fmt::format(
        "model.num_layers ({}){} cannot be split evenly over {} pipeline stages: {} layers{}; num_layers {} or {} "
        "would, "
        "or decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers that leave a multiple of the rest",
        s.num_layers, s.account_for_embedding || s.account_for_loss ? ", with what is accounted for at the ends," : "",
        s.stages, units, s.first_layers || s.last_layers ? fmt::format(" are left for {} stages", even_stages) : "",
        fewer, fewer + even_stages));
  }
  std::vector<int64_t> layers(static_cast<size_t>(s.stages), even_stages > 0 ? units / even_stages : 0);
  if (s.first_layers) layers.front() = *s.first_layers;
  if (s.last_layers) layers.back() = *s.last_layers;
  if (s.account_for_embedding) --layers.front();
  if (s.account_for_loss) --layers.back();
  return layers;
}

}  // namespace trivet
