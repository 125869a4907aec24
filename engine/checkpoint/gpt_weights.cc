#include "engine/checkpoint/gpt_weights.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fmt/format.h>

#include "engine/checkpoint/hf_gpt2.h"
#include "engine/checkpoint/llmc.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/shard.h"
#include "engine/checkpoint/store.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/data/files.h"
#include "engine/model/gpt_stage.h"

namespace trivet {
namespace {

struct Kind {
  std::string_view name, hf_name;  // '*': the layer's number
  bool conv1d = false, query_key_value = false;
};

// In the order of an llm.c file, which has no output weight of its own.
constexpr std::array<Kind, 17> kKinds{{
    {"embedding.word_embeddings.weight", "wte.weight"},
    {"embedding.position_embeddings.weight", "wpe.weight"},
    {"decoder.layers.*.input_layernorm.weight", "h.*.ln_1.weight"},
    {"decoder.layers.*.input_layernorm.bias", "h.*.ln_1.bias"},
    {"decoder.layers.*.self_attention.linear_qkv.weight", "h.*.attn.c_attn.weight", true, true},
    {"decoder.layers.*.self_attention.linear_qkv.bias", "h.*.attn.c_attn.bias", false, true},
    {"decoder.layers.*.self_attention.linear_proj.weight", "h.*.attn.c_proj.weight", true},
    {"decoder.layers.*.self_attention.linear_proj.bias", "h.*.attn.c_proj.bias"},
    {"decoder.layers.*.pre_mlp_layernorm.weight", "h.*.ln_2.weight"},
    {"decoder.layers.*.pre_mlp_layernorm.bias", "h.*.ln_2.bias"},
    {"decoder.layers.*.mlp.linear_fc1.weight", "h.*.mlp.c_fc.weight", true},
    {"decoder.layers.*.mlp.linear_fc1.bias", "h.*.mlp.c_fc.bias"},
    {"decoder.layers.*.mlp.linear_fc2.weight", "h.*.mlp.c_proj.weight", true},
    {"decoder.layers.*.mlp.linear_fc2.bias", "h.*.mlp.c_proj.bias"},
    {"decoder.final_layernorm.weight", "ln_f.weight"},
    {"decoder.final_layernorm.bias", "ln_f.bias"},
    {"output_layer.weight", "lm_head.weight"},
}};

constexpr std::string_view kLayers = "decoder.layers.";

// The number behind "decoder.layers."; empty: no such name.
std::string layer_of(std::string_view name) {
  if (!name.starts_with(kLayers)) return {};
  name.remove_prefix(kLayers.size());
  return std::string(name.substr(0, name.find('.')));
}

std::string with_layer(std::string_view pattern, const std::string& layer) {
  std::string text(pattern);
  if (const size_t star = text.find('*'); star != std::string::npos) text.replace(star, 1, layer);
  return text;
}

GptTensor describe(const Param& param) {
  GptTensor tensor{.name = param.spec.name, .shape = slice_of(param, 0, param.shape.numel()).global};
  const std::string layer = layer_of(tensor.name);
  for (; tensor.kind < kKinds.size(); ++tensor.kind) {
    const Kind& kind = kKinds[tensor.kind];
    if (with_layer(kind.name, layer) != tensor.name) continue;
    tensor.hf_name = with_layer(kind.hf_name, layer);
    tensor.conv1d = kind.conv1d;
    tensor.query_key_value = kind.query_key_value;
    return tensor;
  }
  fail(tensor.name + ": no other format has a name for it");
}

class CheckpointWeights : public GptWeights {
 public:
  explicit CheckpointWeights(const std::string& directory)
      : GptWeights(directory),
        checkpoint_(open_checkpoint(directory)),
        device_(create_cpu_device()),
        stream_(device_->create_compute_stream()) {
    set_model(parse_saved_config(checkpoint_.state.config, directory + "/train_state.json"));
  }

  std::vector<float> read(const GptTensor& tensor) override {
    std::vector<float> values(static_cast<size_t>(tensor.shape.numel()));
    const StateTensor wanted{tensor.name, whole(tensor), {values.data(), DType::f32, {tensor.shape.numel()}}};
    read_tensors(checkpoint_, {&wanted, 1}, *device_, *stream_);
    return values;
  }

  static Slice whole(const GptTensor& tensor) {
    const Shape& shape = tensor.shape;
    return {.global = shape, .rows = shape.rank == 2 ? shape[0] : 1, .cols = shape[-1], .count = shape.numel()};
  }

 private:
  OpenCheckpoint checkpoint_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

// What a checkpoint has to say of a model that no run of ours made: its sizes.
std::map<std::string, std::string> model_values(const Config& config) {
  std::map<std::string, std::string> values;
  for (const Field& field : fields())
    if (field.section() == "model") values[std::string(field.name)] = format_field(field, config);
  return values;
}

}  // namespace

std::vector<GptTensor> gpt_tensors(const ModelConfig& model) {
  const GptShape shape{.num_layers = model.num_layers,
                       .hidden = model.hidden_size,
                       .ffn = model.ffn_hidden_size.value(),
                       .heads = model.num_attention_heads,
                       .seq = model.seq_length,
                       .vocab = model.vocab_size.value(),
                       .padded_vocab = model.vocab_size.value(),
                       .micro_batch = 1,
                       .tied_embeddings = !model.untie_embeddings_and_output_weights};
  ParamList params(0, 1);
  const GptStage stage(params, shape, {.num_layers = model.num_layers}, 0);
  std::vector<GptTensor> tensors;
  for (const Param& param : params.all()) tensors.push_back(describe(param));
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
  if (model.hidden_size % model.num_attention_heads != 0)
    throw DataError(fmt::format("{}: {} heads do not divide the hidden size {}", path_, model.num_attention_heads,
                                model.hidden_size));
  config_.model = config.model;
  config_.precision = config.precision;
  tensors_ = gpt_tensors(config_.model);
}

std::unique_ptr<GptWeights> open_checkpoint_weights(const std::string& directory) {
  return std::make_unique<CheckpointWeights>(directory);
}

std::unique_ptr<GptWeights> open_gpt_weights(const std::string& path) {
  if (is_hf_model(path)) return open_hf_gpt2(path);
  if (is_llmc_model(path)) return open_llmc(path);
  return open_checkpoint_weights(find_checkpoints(path).front());
}

void write_checkpoint(GptWeights& weights, const std::string& directory) {
  if (file_exists(directory)) throw ConfigError(directory + ": is there already; choose a name that is not");
  std::vector<CheckpointPiece> pieces;
  int64_t largest = 0;
  for (const GptTensor& tensor : weights.tensors()) {
    largest = std::max(largest, tensor.shape.numel());
    for (const char* prefix : {"", kFirstMoment, kSecondMoment})
      pieces.push_back({.name = prefix + tensor.name, .slice = CheckpointWeights::whole(tensor)});
  }
  const Disk disk;
  const std::string temporary = directory + ".tmp-convert";
  disk.remove_all(temporary);
  disk.make_directories(temporary);
  ShardWriter shard(disk, temporary, "rank-00000.safetensors", std::move(pieces));
  const std::vector<float> zeros(static_cast<size_t>(largest));
  for (const GptTensor& tensor : weights.tensors()) {
    shard.add(weights.read(tensor).data());
    shard.add(zeros.data());
    shard.add(zeros.data());
  }
  Manifest manifest{.step = 0, .run = "converted", .layout = "converted from " + weights.path()};
  manifest.files.push_back(shard.finish());
  const TrainState state{.config = model_values(weights.config())};
  std::string config = "# Of a model that was converted: what its files say.\nmodel:\n";
  for (const auto& [name, value] : state.config)
    config += fmt::format("  {}: {}\n", name.substr(name.find('.') + 1), value);
  write_manifest(disk, temporary, std::move(manifest), state, config);
  disk.sync_directory(temporary);
  disk.rename(temporary, directory);
}

std::vector<float> transposed(std::span<const float> matrix, int64_t rows, int64_t cols) {
  std::vector<float> out(matrix.size());
  constexpr int64_t kTile = 32;  // of which both sides fit a first-level cache
  for (int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (int64_t c0 = 0; c0 < cols; c0 += kTile)
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c)
          out[static_cast<size_t>(c * rows + r)] = matrix[static_cast<size_t>(r * cols + c)];
  return out;
}

namespace {

// Calls move(row where heads are joined, row where they are split) for each block of hidden / heads rows.
template <class F>
void for_each_head(int64_t heads, int64_t hidden, F&& move) {
  const int64_t rows = hidden / heads;
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t part = 0; part < 3; ++part) move((3 * head + part) * rows, part * hidden + head * rows, rows);
}

}  // namespace

std::vector<float> split_heads(std::span<const float> rows, int64_t heads, int64_t hidden) {
  std::vector<float> out(rows.size());
  const auto cols = static_cast<int64_t>(rows.size()) / (3 * hidden);
  for_each_head(heads, hidden, [&](int64_t joined, int64_t split, int64_t n) {
    std::copy_n(rows.data() + joined * cols, n * cols, out.data() + split * cols);
  });
  return out;
}

std::vector<float> join_heads(std::span<const float> rows, int64_t heads, int64_t hidden) {
  std::vector<float> out(rows.size());
  const auto cols = static_cast<int64_t>(rows.size()) / (3 * hidden);
  for_each_head(heads, hidden, [&](int64_t joined, int64_t split, int64_t n) {
    std::copy_n(rows.data() + split * cols, n * cols, out.data() + joined * cols);
  });
  return out;
}

}  // namespace trivet
