#include "tools/convert/hf_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/files.h"
#include "base/json.h"
#include "engine/config/fields.h"
#include "engine/config/validate.h"

namespace trivet {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kLargestConfig = 1 << 20, kLargestSize = int64_t{1} << 40;

// ---- names

struct HfNames {  // '*': the layer's number
  std::string_view gpt2;
  std::array<std::string_view, 3> llama{};  // one per part
};
// Indexed by Module.
constexpr auto kNames = std::to_array<HfNames>(
    {{"wte", {"embed_tokens"}},
     {"wpe"},
     {"h.*.ln_1", {"layers.*.input_layernorm"}},
     {"h.*.attn.c_attn", {"layers.*.self_attn.q_proj", "layers.*.self_attn.k_proj", "layers.*.self_attn.v_proj"}},
     {"", {"layers.*.self_attn.q_norm"}},
     {"", {"layers.*.self_attn.k_norm"}},
     {"h.*.attn.c_proj", {"layers.*.self_attn.o_proj"}},
     {"h.*.ln_2", {"layers.*.post_attention_layernorm"}},
     {"h.*.mlp.c_fc", {"layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"}},
     {"h.*.mlp.c_proj", {"layers.*.mlp.down_proj"}},
     {"ln_f", {"norm"}},
     {"lm_head", {"lm_head"}}});
static_assert(kNames.size() == kModules);

// Selects GPT-2's or Llama's naming scheme. Trivet models that mix the two can be neither read nor written.
bool is_gpt2(const ModelSpec& model) { return model.positions == Positions::learned; }

bool is_conv1d(Module module) {
  return module == Module::qkv || module == Module::proj || module == Module::fc1 || module == Module::fc2;
}

// ---- config.json

class HfConfig {
 public:
  explicit HfConfig(const std::string& path)
      : whole_(parse_strict_json(read_small_file(path, kLargestConfig), path)), reader_(whole_, path) {}

  const JsonReader& reader() const { return reader_; }
  bool has(const char* name) const { return is_given(name) && !whole_[name].is_null(); }
  bool is_given(const char* name) const {  // possibly with a null value
    asked_.insert(name);
    return whole_.contains(name);
  }
  // Keys never queried, as "bos_token_id 1", except those that concern only transformers.
  std::vector<std::string> unread() const {
    constexpr std::string_view kNotOfModels =
        " _name_or_path architectures dtype layer_types max_window_layers model_type n_ctx output_attentions "
        "output_hidden_states pretraining_tp reorder_and_upcast_attn return_dict sliding_window torch_dtype "
        "transformers_version use_cache ";
    std::vector<std::string> keys;
    for (const auto& [name, value] : whole_.items())
      if (!asked_.contains(name) && kNotOfModels.find(" " + name + " ") == kNotOfModels.npos && !value.is_null() &&
          !name.starts_with("summary_"))
        keys.push_back(fmt::format("{} {}", name.substr(0, 60), value.dump().substr(0, 60)));
    return keys;
  }
  const json& at(const char* name) const { return whole_.at(name); }
  int64_t size(const char* name) const {
    asked_.insert(name);
    return reader_.integer(name, 1, kLargestSize);
  }
  int64_t size_or(const char* name, int64_t otherwise) const { return has(name) ? size(name) : otherwise; }
  double number_or(const char* name, double otherwise) const { return has(name) ? reader_.number(name) : otherwise; }
  bool flag_or(const char* name, bool otherwise) const {
    if (has(name) && !whole_[name].is_boolean()) refuse(name, "true or false");
    return has(name) ? whole_[name].get<bool>() : otherwise;
  }
  // For a setting that changes the model and for which Trivet supports only this value.
  void expect(const char* name, const json& only) const {
    if (has(name) && whole_[name] != only) refuse(name, only.dump() + ", the only one that Trivet supports");
  }
  [[noreturn]] void refuse(const char* name, const std::string& expected) const {
    reader_.refuse(name, whole_.contains(name) ? whole_[name].dump().substr(0, 200) : "nothing", expected);
  }

 private:
  json whole_;
  JsonReader reader_;
  mutable std::set<std::string> asked_;
};

ModelConfig read_gpt2(const HfConfig& config, std::vector<std::string>& unread) {
  if (!config.is_given("activation_function") || config.at("activation_function") != "gelu_pytorch_tanh")
    config.expect("activation_function", "gelu_new");
  config.expect("scale_attn_weights", true);
  config.expect("scale_attn_by_inverse_layer_idx", false);
  config.expect("add_cross_attention", false);
  ModelConfig model;
  model.num_layers = config.size_or("n_layer", 12);
  model.hidden_size = config.size_or("n_embd", 768);
  model.ffn_hidden_size = config.size_or("n_inner", 4 * model.hidden_size);
  model.num_attention_heads = config.size_or("n_head", 12);
  model.seq_length = config.size_or("n_positions", config.size_or("n_ctx", 1024));
  model.vocab_size = config.size_or("vocab_size", 50257);
  model.layernorm_epsilon = config.number_or("layer_norm_epsilon", 1e-5);
  model.hidden_dropout = config.number_or("resid_pdrop", 0.1);
  model.attention_dropout = config.number_or("attn_pdrop", 0.1);
  const double embedding_dropout = config.number_or("embd_pdrop", 0.1);
  if (embedding_dropout != model.hidden_dropout) unread.push_back(fmt::format("embd_pdrop {}", embedding_dropout));
  model.untie_embeddings_and_output_weights = !config.flag_or("tie_word_embeddings", true);
  return model;
}

// Reads the scaling from the object that transformers 4 (rope_scaling) or 5 (rope_parameters) writes.
Rotary read_scaling(const HfConfig& config, const char* name) {
  if (!config.has(name)) return {};
  const JsonReader rope = config.reader().object(name);
  const json& object = config.at(name);
  constexpr std::string_view kKnown =
      " factor high_freq_factor low_freq_factor original_max_position_embeddings partial_rotary_factor rope_theta "
      "rope_type type ";
  const auto expect = [&](const char* key, const json& only) {
    if (object.contains(key) && object[key] != only) rope.refuse(key, object[key].dump().substr(0, 200), only.dump());
  };
  for (const auto& [key, value] : object.items())  // unknown keys: those of other types, or an object per layer type
    if (!value.is_null() && kKnown.find(" " + key + " ") == kKnown.npos)
      rope.refuse(key.c_str(), value.dump().substr(0, 200), fmt::format("only{}", kKnown.substr(0, kKnown.size() - 1)));
  expect("partial_rotary_factor", 1);
  const char* const type_key = object.contains("type") && !object.contains("rope_type") ? "type" : "rope_type";
  const std::string type = object.contains(type_key) || object.contains("factor") ? rope.text(type_key) : "default";
  expect("type", type);
  if (type == "default") expect("factor", 1);
  if (type == "default") return {};
  if (type != "llama3") rope.refuse(type_key, json_text(type.substr(0, 40)), "\"llama3\" or \"default\"");
  Rotary scaling{
      .factor = rope.number("factor"), .low = rope.number("low_freq_factor"), .high = rope.number("high_freq_factor")};
  scaling.original_length = rope.number("original_max_position_embeddings");  // an integer, or a float such as 8192.0
  if (!(scaling.original_length >= 1 && scaling.original_length <= kLargestSize) ||
      scaling.original_length != std::floor(scaling.original_length))
    rope.refuse("original_max_position_embeddings", object["original_max_position_embeddings"].dump(),
                fmt::format("an integer from 1 to {}", kLargestSize));
  if (!(scaling.high > scaling.low))
    rope.refuse("high_freq_factor", fmt::format("{}", scaling.high), fmt::format("more than {}", scaling.low));
  return scaling;
}

// The two versions store theta and scaling in different places, and each ignores the other's place and falls back to
// its defaults, so if both are given, they must agree. If neither is, as in Llama 2's files, both use theta 10,000.
void read_rope(const HfConfig& config, ModelConfig& model) {
  std::optional<double> theta;
  std::optional<Rotary> scaling;
  const auto take = [&](auto& known, const auto& found, const char* name) {
    if (known && *known != found) config.refuse(name, "what the file says elsewhere");
    known = found;
  };
  if (config.has("rope_theta")) take(theta, config.number_or("rope_theta", 0), "rope_theta");
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (config.is_given(name)) take(scaling, read_scaling(config, name), name);
    if (config.has(name) && config.at(name).contains("rope_theta"))
      take(theta, config.reader().object(name).number("rope_theta"), name);
  }
  if (!theta && config.is_given("rope_theta")) config.refuse("rope_theta", "a number, here or in rope_parameters");
  model.rotary_base = theta.value_or(10'000);
  model.use_rope_scaling = scaling && scaling->factor != 1;
  if (!model.use_rope_scaling) return;
  model.rope_scaling_factor = scaling->factor;
  model.rope_scaling_low_freq_factor = scaling->low;
  model.rope_scaling_high_freq_factor = scaling->high;
  model.rope_scaling_original_max_position_embeddings = static_cast<int64_t>(scaling->original_length);
}

// Rejects attention that does not cover all positions of a sample.
void expect_full_attention(const HfConfig& config, const std::string& type, int64_t positions) {
  const bool windows = type == "mistral" || (type != "llama" && config.flag_or("use_sliding_window", false));
  if (windows && (!config.is_given("sliding_window") || config.has("sliding_window")) &&
      config.size_or("sliding_window", 4096) < positions)  // absent: 4096
    config.refuse("sliding_window",
                  fmt::format("null, or at least max_position_embeddings, {}: Trivet's attention covers "
                              "all positions; a smaller max_position_embeddings can be imported",
                              positions));
  if (config.has("layer_types"))
    for (const json& layer : config.reader().array("layer_types"))
      if (layer != "full_attention") config.refuse("layer_types", "\"full_attention\" in all");
}

ModelConfig read_llama(const HfConfig& config, const std::string& type, std::string& zero_biases) {
  config.expect("hidden_act", "silu");
  config.expect("partial_rotary_factor", 1);
  ModelConfig model;
  model.normalization = Norm::rmsnorm;
  model.swiglu = true;
  model.position_embedding_type = Positions::rope;
  model.num_layers = config.size("num_hidden_layers");
  model.hidden_size = config.size("hidden_size");
  model.ffn_hidden_size = config.size("intermediate_size");
  model.num_attention_heads = config.size("num_attention_heads");
  const bool no_groups = type == "llama" || config.is_given("num_key_value_heads");  // null: as many as heads
  if (config.has("num_key_value_heads") || !no_groups) model.num_query_groups = config.size("num_key_value_heads");
  if (config.has("head_dim") || type == "qwen3") model.kv_channels = config.size_or("head_dim", 128);
  if (model.hidden_size % model.num_attention_heads == 0 &&
      model.kv_channels == model.hidden_size / model.num_attention_heads)
    model.kv_channels.reset();
  model.seq_length = config.size("max_position_embeddings");
  model.vocab_size = config.size("vocab_size");
  model.layernorm_epsilon = config.number_or("rms_norm_eps", 1e-6);
  model.attention_dropout = config.number_or("attention_dropout", 0);
  model.untie_embeddings_and_output_weights = !config.flag_or("tie_word_embeddings", false);
  model.add_bias_linear = false;
  if (type == "llama") {  // its attention_bias covers proj too; Trivet's add_bias_linear covers all linear layers
    const bool attention = config.flag_or("attention_bias", false), mlp = config.flag_or("mlp_bias", false);
    model.add_bias_linear = attention || mlp;
    if (attention != mlp) zero_biases = attention ? ".mlp." : ".self_attn.";
  }
  if (type == "qwen3") config.expect("attention_bias", false);
  model.add_qkv_bias = type == "qwen2";
  model.qk_layernorm = type == "qwen3";
  expect_full_attention(config, type, model.seq_length);
  read_rope(config, model);
  return model;
}

ordered_json gpt2_config(const ModelConfig& model) {
  const bool default_ffn = model.ffn_hidden_size == 4 * model.hidden_size;
  return {
      {"architectures", {"GPT2LMHeadModel"}}, {"model_type", "gpt2"},
      {"n_positions", model.seq_length},      {"n_ctx", model.seq_length},
      {"n_embd", model.hidden_size},          {"n_layer", model.num_layers},
      {"n_head", model.num_attention_heads},  {"n_inner", default_ffn ? json() : json(model.ffn_hidden_size.value())},
      {"activation_function", "gelu_new"},    {"layer_norm_epsilon", model.layernorm_epsilon},
      {"resid_pdrop", model.hidden_dropout},  {"embd_pdrop", model.hidden_dropout},
      {"attn_pdrop", model.attention_dropout}};
}

// The Llama-family architecture that computes the model.
std::string llama_type(const ModelConfig& model) {
  return model.qk_layernorm ? "qwen3" : model.add_qkv_bias && !model.add_bias_linear ? "qwen2" : "llama";
}

std::string architecture_of(std::string type) {
  type[0] = static_cast<char>(std::toupper(type[0]));
  return type + "ForCausalLM";
}

ordered_json llama_config(const ModelConfig& model) {
  const AttentionSpec heads = model_spec_of(model).attention;
  const std::string type = llama_type(model);
  ordered_json scaling;
  if (model.use_rope_scaling)
    scaling = {{"rope_type", "llama3"},
               {"factor", model.rope_scaling_factor},
               {"low_freq_factor", model.rope_scaling_low_freq_factor},
               {"high_freq_factor", model.rope_scaling_high_freq_factor},
               {"original_max_position_embeddings", model.rope_scaling_original_max_position_embeddings}};
  ordered_json rope = scaling.is_null() ? ordered_json{{"rope_type", "default"}} : scaling;
  rope["rope_theta"] = model.rotary_base;
  ordered_json out{{"architectures", {architecture_of(type)}},
                   {"model_type", type},
                   {"hidden_size", model.hidden_size},
                   {"intermediate_size", model.ffn_hidden_size.value()},
                   {"num_hidden_layers", model.num_layers},
                   {"num_attention_heads", heads.heads},
                   {"num_key_value_heads", heads.kv_heads},
                   {"head_dim", heads.head_width},
                   {"hidden_act", "silu"},
                   {"max_position_embeddings", model.seq_length},
                   {"rms_norm_eps", model.layernorm_epsilon},
                   {"rope_theta", model.rotary_base},
                   {"rope_scaling", scaling},
                   {"rope_parameters", rope},
                   {"attention_dropout", model.attention_dropout}};
  if (type != "llama") out.update({{"use_sliding_window", false}, {"sliding_window", nullptr}});
  if (type != "qwen2") out["attention_bias"] = model.add_bias_linear;
  if (type == "llama") out["mlp_bias"] = model.add_bias_linear;
  return out;
}

// Model keys by where they are carried: in every config.json or the tensor shapes; in a Llama's config.json only; or
// nowhere, as they change how a model is trained but not what its weights compute.
constexpr std::string_view kCarried =
    " num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels seq_length vocab_size "
    "untie_embeddings_and_output_weights init_method_std attention_dropout layernorm_epsilon ";
constexpr std::string_view kCarriedByLlama =
    " add_bias_linear rotary_base use_rope_scaling rope_scaling_factor rope_scaling_low_freq_factor "
    "rope_scaling_high_freq_factor rope_scaling_original_max_position_embeddings ";
constexpr std::string_view kOfTraining =
    " make_vocab_size_divisible_by scale_output_layer_init hidden_dropout recompute_granularity "
    "recompute_modules recompute_method recompute_num_layers cross_entropy_chunk_rows ";

// Rejects settings that the architecture cannot compute and transformers would ignore: other values of the keys that
// define it, and non-default values of any key not listed above, so a new key is rejected until it is listed.
void expect_holds(const std::string& type, const ModelConfig& model, const std::string& what) {
  std::map<std::string_view, std::string> expected{
      {"model.normalization", "RMSNorm"}, {"model.swiglu", "true"}, {"model.position_embedding_type", "rope"}};
  if (type == "gpt2")
    expected = {{"model.num_query_groups", std::to_string(model.num_attention_heads)},
                {"model.kv_channels", std::to_string(model.hidden_size / model.num_attention_heads)}};
  if (type == "qwen2" || type == "qwen3") expected["model.add_bias_linear"] = "false";
  if (type == "qwen2") expected["model.add_qkv_bias"] = "true";
  if (type == "qwen3") expected["model.qk_layernorm"] = "true";
  const std::string known =
      fmt::format("{}{}{}", kCarried, kOfTraining, type == "gpt2" ? std::string_view() : kCarriedByLlama);
  const Config config = with_sizes(model), defaults;
  for (const Field& field : fields()) {
    if (field.section() != "model") continue;
    const auto named = expected.find(field.name);
    if (named == expected.end() && known.find(fmt::format(" {} ", field.key())) != known.npos) continue;
    const std::string value = named == expected.end() ? format_field(field, defaults) : named->second;
    if (const std::string found = format_field(field, config); found != value)
      throw ConfigError(
          fmt::format("{} cannot hold this model: {}: found {}, expected {}", what, field.name, found, value));
  }
  if (type != "gpt2" && type != "qwen3" && model.hidden_size % model.num_attention_heads != 0)
    throw ConfigError(  // as transformers 5 does for a Llama
        fmt::format("{} cannot hold this model: model.hidden_size: found {}, expected a multiple of "
                    "model.num_attention_heads, {}",
                    what, model.hidden_size, model.num_attention_heads));
}

}  // namespace

std::vector<HfTensor> hf_tensors(const ModelSpec& model, const ModelTensor& tensor) {
  const Shape& shape = tensor.param.global_shape;
  const std::string& own = tensor.param.name;
  const HfNames& names = kNames[static_cast<size_t>(tensor.module)];
  const AttentionSpec& heads = model.attention;
  const bool gate = tensor.module == Module::fc1 && model.gated(), matrix = shape.rank == (gate ? 3 : 2);
  const int64_t cols = matrix ? shape[-1] : 1, rows = shape.numel() / cols;
  std::vector<int64_t> parts{rows};
  if (!is_gpt2(model) && gate) parts = {rows / 2, rows / 2};
  if (!is_gpt2(model) && tensor.module == Module::qkv)
    parts = {heads.width(), heads.kv_heads * heads.head_width, heads.kv_heads * heads.head_width};
  std::vector<HfTensor> tensors;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string name(is_gpt2(model) ? names.gpt2 : names.llama[i]);
    if (const size_t star = name.find('*'); star != std::string::npos)
      name.replace(star, 1, std::to_string(tensor.layer));
    HfTensor part{name + own.substr(own.rfind('.')), {parts[i]}, matrix && is_gpt2(model) && is_conv1d(tensor.module)};
    if (matrix) part.shape.insert(part.conv1d ? part.shape.begin() : part.shape.end(), cols);
    tensors.push_back(part);
  }
  return tensors;
}

std::string_view hf_prefix(const ModelSpec& model) { return is_gpt2(model) ? "transformer." : "model."; }

ModelConfig read_hf_config(const std::string& path, std::vector<std::string>& unread, std::string& zero_biases) {
  const HfConfig config(path);
  const std::string type = config.reader().text("model_type");
  if (type != "gpt2" && type != "llama" && type != "mistral" && type != "qwen2" && type != "qwen3")
    config.refuse("model_type", "gpt2, llama, mistral, qwen2 or qwen3");
  if (config.has("quantization_config")) config.refuse("quantization_config", "weights that are not quantized");
  ModelConfig model = type == "gpt2" ? read_gpt2(config, unread) : read_llama(config, type, zero_biases);
  model.init_method_std = config.number_or("initializer_range", 0.02);
  std::ranges::copy(config.unread(), std::back_inserter(unread));
  return model;
}

std::string to_hf_config(const ModelConfig& model, const std::string& folder, const HfExport& options) {
  const bool gpt2 = is_gpt2(model_spec_of(model));
  const std::string type = gpt2 ? "gpt2" : llama_type(model);
  expect_holds(type, model, folder + ": Hugging Face's " + (gpt2 ? "GPT2LMHeadModel" : architecture_of(type)));
  ordered_json out = gpt2 ? gpt2_config(model) : llama_config(model);
  // GPT-2's vocabulary ends with the end-of-text token; in other vocabularies, its id is unknown.
  const int64_t of_gpt2 = gpt2 && model.vocab_size == 50257 ? 50256 : -1;
  const auto id = [&](int64_t given) {
    const int64_t known = given >= 0 ? given : of_gpt2;
    return known >= 0 ? json(known) : json();
  };
  out.update({{"vocab_size", model.vocab_size.value()},
              {"initializer_range", model.init_method_std},
              {"tie_word_embeddings", !model.untie_embeddings_and_output_weights},
              {"bos_token_id", id(options.bos)},
              {"eos_token_id", id(options.eos)},
              {"torch_dtype", options.dtype == DType::bf16 ? "bfloat16" : "float32"}});
  return out.dump(2) + "\n";
}

}  // namespace trivet
