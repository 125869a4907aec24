#include "engine/checkpoint/gpt_weights.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <string_view>
#include <utility>

#include "engine/config/fields.h"
#include "engine/config/validate.h"

namespace trivet {
namespace {

struct Foreign {
  std::string_view hf_name;  // '*': the layer's number
  bool conv1d = false;       // its matrix
  bool query_key_value = false;
};
// By Module, whose order is that of an llm.c file too.
constexpr auto kForeign = std::to_array<Foreign>({{"wte"},
                                                  {"wpe"},
                                                  {"h.*.ln_1"},
                                                  {"h.*.attn.c_attn", true, true},
                                                  {"h.*.attn.c_proj", true},
                                                  {"h.*.ln_2"},
                                                  {"h.*.mlp.c_fc", true},
                                                  {"h.*.mlp.c_proj", true},
                                                  {"ln_f"},
                                                  {"lm_head"}});
static_assert(kForeign.size() == kModules);

GptTensor describe(const ModelTensor& tensor) {
  const auto module = static_cast<size_t>(tensor.module);
  const Foreign& foreign = kForeign[module];
  const std::string& name = tensor.param.name;
  const std::string end = name.substr(name.rfind('.'));  // .weight or .bias
  std::string hf_name = std::string(foreign.hf_name) + end;
  if (const size_t star = hf_name.find('*'); star != std::string::npos)
    hf_name.replace(star, 1, std::to_string(tensor.layer));
  return {.name = name,
          .hf_name = hf_name,
          .shape = tensor.param.global_shape,
          .kind = 2 * module + (end == ".bias" ? 1 : 0),
          .conv1d = foreign.conv1d && tensor.param.global_shape.rank == 2,
          .query_key_value = foreign.query_key_value};
}

}  // namespace

std::vector<GptTensor> gpt_tensors(const ModelSpec& model) {
  std::vector<GptTensor> tensors;
  for (const ModelTensor& tensor : model_tensors(model)) tensors.push_back(describe(tensor));
  return tensors;
}

int64_t parameters_of(const std::vector<GptTensor>& tensors) {
  int64_t sum = 0;
  for (const GptTensor& tensor : tensors) sum += tensor.shape.numel();
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
    tensors_ = gpt_tensors(model_spec_of(config_.model));
  } catch (const ConfigError& error) {
    throw DataError(fmt::format("{}: {}", path_, error.what()));
  }
}

void expect_gpt2(const ModelConfig& model, const std::string& what) {
  const ModelSpec spec = model_spec_of(model);
  const AttentionSpec& a = spec.attention;
  const std::pair<bool, const char*> others[] = {{spec.norm != Norm::layernorm, "RMSNorm"},
                                                 {spec.gated(), "SwiGLU"},
                                                 {spec.positions != Positions::learned, "rope"},
                                                 {!spec.biases, "linear layers without biases"},
                                                 {a.kv_heads != a.heads, "query groups"},
                                                 {a.width() != spec.hidden, "heads that do not fill the hidden size"}};
  for (const auto& [found, name] : others)
    if (found) throw ConfigError(fmt::format("{} cannot hold this model: found {}, expected a GPT-2", what, name));
}

std::vector<float> transposed(std::span<const float> matrix, int64_t rows, int64_t cols) {
  std::vector<float> out(matrix.size());
  constexpr int64_t kTile = 32;  // two such tiles fit a first-level cache
  for (int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (int64_t c0 = 0; c0 < cols; c0 += kTile)
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c)
          out[static_cast<size_t>(c * rows + r)] = matrix[static_cast<size_t>(r * cols + c)];
  return out;
}

std::vector<float> reorder_heads(std::span<const float> rows, const ModelConfig& model, HeadOrder to) {
  std::vector<float> out(rows.size());
  const int64_t heads = model.num_attention_heads;
  const int64_t n = static_cast<int64_t>(rows.size()) / (3 * heads);  // elements of one head's q, k or v
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t part = 0; part < 3; ++part) {
      int64_t from = (3 * head + part) * n, target = (part * heads + head) * n;
      if (to == HeadOrder::by_head) std::swap(from, target);
      std::copy_n(rows.data() + from, n, out.data() + target);
    }
  return out;
}

}  // namespace trivet
