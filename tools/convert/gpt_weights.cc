#include "tools/convert/gpt_weights.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "base/piece.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"

namespace trivet {
Config with_sizes(const ModelConfig& model) {
  const AttentionSpec heads = model_spec_of(model).attention;
  Config config;
  config.model = model;
  config.model.num_query_groups = heads.kv_heads;
  config.model.kv_channels = heads.head_width;
  return config;
}

int64_t parameters_of(const std::vector<ModelTensor>& tensors) {
  int64_t sum = 0;
  for (const ModelTensor& tensor : tensors) sum += tensor.param.global_shape.numel();
  return sum;
}

void GptWeights::set_model(const Config& config) {
  for (const Field& field : fields()) {
    if (field.section() != "model") continue;
    if (const auto problem = check_field(field, config))
      throw DataError(fmt::format("{}: {}: {}", path_, field.name, *problem));
  }
  const ModelConfig& model = config.model;
  if (!model.ffn_hidden_size || !model.vocab_size)
    throw DataError(path_ + ": model.ffn_hidden_size and model.vocab_size: found auto, expected numbers");
  if (!model.kv_channels && model.hidden_size % model.num_attention_heads != 0)
    throw DataError(fmt::format("{}: {} heads do not divide the hidden size {}", path_, model.num_attention_heads,
                                model.hidden_size));
  config_.model = config.model;
  config_.precision = config.precision;
  try {
    tensors_ = model_tensors(model_spec_of(config_.model));
  } catch (const ConfigError& error) {
    throw DataError(fmt::format("{}: {}", path_, error.what()));
  }
}

std::vector<std::string> not_carried(const GptWeights& from, const GptWeights& to) {
  std::vector<std::string> keys;
  for (const auto& [key, before, after] : differences(with_sizes(from.config().model), with_sizes(to.config().model)))
    keys.push_back(fmt::format("{} {}", key, before));
  return keys;
}

std::vector<float> transposed(std::span<const float> matrix, int64_t rows, int64_t cols) {
  std::vector<float> out(matrix.size());
  constexpr int64_t kTile = piece(32, 4);  // two such tiles fit in the L1 cache
  for (int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (int64_t c0 = 0; c0 < cols; c0 += kTile)
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c)
          out[static_cast<size_t>(c * rows + r)] = matrix[static_cast<size_t>(r * cols + c)];
  return out;
}

std::vector<float> reorder_heads(std::span<const float> rows, const AttentionSpec& heads, HeadOrder to) {
  std::vector<float> out(rows.size());
  const int64_t groups = heads.kv_heads, queries = heads.heads / groups;             // queries per group
  const int64_t n = static_cast<int64_t>(rows.size()) / (heads.heads + 2 * groups);  // elements of one head
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t i = 0; i < queries + 2; ++i) {
      const int64_t by_group = group * (queries + 2) + i;
      const int64_t by_part = i < queries ? group * queries + i : heads.heads + (i - queries) * groups + group;
      const auto [from, target] =
          to == HeadOrder::by_group ? std::pair(by_part, by_group) : std::pair(by_group, by_part);
      std::copy_n(rows.data() + from * n, n, out.data() + target * n);
    }
  return out;
}

}  // namespace trivet
