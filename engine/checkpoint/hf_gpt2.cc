// Hugging Face's GPT-2: a folder of config.json and model.safetensors, or of shards that model.safetensors.index.json
// lists. Names may have the prefix "transformer.", and the masks of old files are ignored; any other tensor that is
// unknown, missing or of another shape is refused by name. Read as fp32 from F32, F16 and BF16.
//
// (transformers, models/gpt2/modeling_gpt2.py and configuration_gpt2.py.)
#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/files.h"
#include "base/json.h"
#include "engine/checkpoint/gpt_weights.h"
#include "engine/checkpoint/safetensors.h"

namespace trivet {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kLargestConfig = 1 << 20, kLargestIndex = 16 << 20;
constexpr std::string_view kHfPrefix = "transformer.";
constexpr const char* kFile = "/model.safetensors";
constexpr const char* kIndex = "/model.safetensors.index.json";
constexpr const char* kConfig = "/config.json";

// ---- config.json: what is absent has the default of transformers' GPT2Config

int64_t size_or(const json& config, const JsonReader& reader, const char* name, int64_t otherwise) {
  return config.contains(name) && !config[name].is_null() ? reader.integer(name, 1, int64_t{1} << 40) : otherwise;
}

double number_or(const json& config, const JsonReader& reader, const char* name, double otherwise) {
  if (!config.contains(name)) return otherwise;
  if (!config[name].is_number()) reader.refuse(name, config[name].dump().substr(0, 40), "a number");
  return config[name].get<double>();
}

// A switch that changes the model: only its default is a model that Trivet has.
void expect_default(const json& config, const JsonReader& reader, const char* name, const json& expected) {
  if (config.contains(name) && config[name] != expected)
    reader.refuse(name, config[name].dump().substr(0, 60), expected.dump() + ", the only one that Trivet has");
}

Config parse_config_json(const std::string& path) {
  const json whole = parse_strict_json(read_small_file(path, kLargestConfig), path);
  const JsonReader reader(whole, path);
  if (const std::string type = reader.text("model_type"); type != "gpt2")
    reader.refuse("model_type", "'" + type.substr(0, 60) + "'", "'gpt2'");
  if (whole.contains("activation_function") && whole["activation_function"] != "gelu_pytorch_tanh")
    expect_default(whole, reader, "activation_function", "gelu_new");
  expect_default(whole, reader, "scale_attn_weights", true);
  expect_default(whole, reader, "scale_attn_by_inverse_layer_idx", false);
  expect_default(whole, reader, "add_cross_attention", false);
  Config config;
  ModelConfig& model = config.model;
  model.num_layers = size_or(whole, reader, "n_layer", 12);
  model.hidden_size = size_or(whole, reader, "n_embd", 768);
  model.ffn_hidden_size = size_or(whole, reader, "n_inner", 4 * model.hidden_size);
  model.num_attention_heads = size_or(whole, reader, "n_head", 12);
  model.seq_length = size_or(whole, reader, "n_positions", size_or(whole, reader, "n_ctx", 1024));
  model.vocab_size = size_or(whole, reader, "vocab_size", 50257);
  model.layernorm_epsilon = number_or(whole, reader, "layer_norm_epsilon", 1e-5);
  model.init_method_std = number_or(whole, reader, "initializer_range", 0.02);
  model.hidden_dropout = number_or(whole, reader, "resid_pdrop", 0.1);
  model.attention_dropout = number_or(whole, reader, "attn_pdrop", 0.1);
  model.untie_embeddings_and_output_weights =
      whole.contains("tie_word_embeddings") && whole["tie_word_embeddings"] == false;
  return config;
}

std::string config_json(const ModelConfig& model, DType dtype) {
  const bool default_ffn = model.ffn_hidden_size == 4 * model.hidden_size;
  // GPT-2's vocabulary ends with its end of text; of another one it is unknown.
  const json end_of_text = model.vocab_size == 50257 ? json(50256) : json();
  const nlohmann::ordered_json out{{"architectures", {"GPT2LMHeadModel"}},
                                   {"model_type", "gpt2"},
                                   {"vocab_size", model.vocab_size.value()},
                                   {"n_positions", model.seq_length},
                                   {"n_ctx", model.seq_length},
                                   {"n_embd", model.hidden_size},
                                   {"n_layer", model.num_layers},
                                   {"n_head", model.num_attention_heads},
                                   {"n_inner", default_ffn ? json() : json(model.ffn_hidden_size.value())},
                                   {"activation_function", "gelu_new"},
                                   {"layer_norm_epsilon", model.layernorm_epsilon},
                                   {"initializer_range", model.init_method_std},
                                   {"resid_pdrop", model.hidden_dropout},
                                   {"embd_pdrop", model.hidden_dropout},
                                   {"attn_pdrop", model.attention_dropout},
                                   {"tie_word_embeddings", !model.untie_embeddings_and_output_weights},
                                   {"bos_token_id", end_of_text},
                                   {"eos_token_id", end_of_text},
                                   {"torch_dtype", dtype == DType::bf16 ? "bfloat16" : "float32"}};
  return out.dump(2) + "\n";
}

// ---- tensors

// Masks that old versions stored with the weights.
bool is_mask(std::string_view name) { return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"); }

bool is_folder(const std::string& path) {
  std::error_code ignored;  // what cannot be looked at is no folder; opening it says why
  return fs::is_directory(path, ignored);
}

// A file of the model's own folder.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.size() < 256 && name.find_first_of("/\\") == std::string::npos &&
         name.find('\0') == std::string::npos;
}

std::vector<int64_t> shape_in_file(const GptTensor& tensor) {
  std::vector<int64_t> shape(tensor.shape.dims.begin(), tensor.shape.dims.begin() + tensor.shape.rank);
  if (tensor.conv1d) std::ranges::reverse(shape);
  return shape;
}

class HfWeights : public GptWeights {
 public:
  explicit HfWeights(const std::string& path) : GptWeights(path) {
    const bool folder = is_folder(path);
    folder_ = folder ? path : fs::path(path).parent_path().string();
    if (folder_.empty()) folder_ = ".";
    if (!file_exists(folder_ + kConfig)) throw DataError(folder_ + kConfig + ": not found; it describes the model");
    set_model(parse_config_json(folder_ + kConfig));
    if (!folder) open(path, nullptr);
    else if (file_exists(folder_ + kFile)) open(folder_ + kFile, nullptr);
    else open_index();
    check_tensors();
  }

  std::vector<float> read(const GptTensor& tensor) override {
    std::vector<float> values = read_as_stored(tensor.hf_name);
    if (tensor.conv1d) values = transposed(values, tensor.shape[1], tensor.shape[0]);
    if (tensor.query_key_value) values = reorder_heads(values, config_.model, HeadOrder::by_head);
    return values;
  }

 private:
  struct File {
    explicit File(const std::string& path) : file(path), content(read_safetensors(file)) {}
    InputFile file;
    SafeTensors content;
  };
  struct Place {
    const File* file;
    const SafeTensor* tensor;
  };

  // `expected`: the index's names of this file's tensors; null: there is no index.
  void open(const std::string& path, const std::set<std::string>* expected) {
    const File& file = *files_.emplace_back(std::make_unique<File>(path));
    if (expected) {
      std::set<std::string_view> names;
      for (const SafeTensor& tensor : file.content.tensors) names.insert(tensor.name);
      for (const std::string& name : *expected)
        if (!names.contains(name))
          throw DataError(
              fmt::format("{}: has no tensor '{}', which {} promises", path, name.substr(0, 200), kIndex + 1));
    }
    for (const SafeTensor& tensor : file.content.tensors) {
      std::string name = tensor.name;
      if (name.starts_with(kHfPrefix)) name.erase(0, kHfPrefix.size());
      if (!is_mask(name) && !places_.try_emplace(name, Place{&file, &tensor}).second)
        throw DataError(fmt::format("{}: tensor '{}': the model has it twice", path, tensor.name.substr(0, 200)));
    }
  }

  void open_index() {
    const std::string path = folder_ + kIndex;
    if (!file_exists(path)) throw DataError(fmt::format("{}: has neither {} nor {}", folder_, kFile + 1, kIndex + 1));
    const json whole = parse_strict_json(read_small_file(path, kLargestIndex), path);
    const JsonReader map = JsonReader(whole, path).object("weight_map");
    std::map<std::string, std::set<std::string>> tensors;  // by file
    for (const auto& [name, value] : whole.at("weight_map").items()) {
      const std::string file = map.text(name.c_str());
      if (!is_plain_file_name(file))
        map.refuse(name.substr(0, 200).c_str(), "'" + file.substr(0, 200) + "'",
                   "the name of a file in the model's folder");
      tensors[file].insert(name);
    }
    for (const auto& [file, names] : tensors) open(folder_ + "/" + file, &names);
  }

  void check_tensors() {
    std::set<std::string> known;
    for (const GptTensor& tensor : tensors_) {
      known.insert(tensor.hf_name);
      const auto at = places_.find(tensor.hf_name);
      const std::vector<int64_t> expected = shape_in_file(tensor);
      if (at == places_.end())
        throw DataError(fmt::format("{}: tensor {}: not found, expected the shape [{}]", path_, tensor.hf_name,
                                    fmt::join(expected, ", ")));
      const SafeTensor& found = *at->second.tensor;
      if (found.shape != expected)
        throw DataError(fmt::format("{}: tensor {}: found the shape [{}], expected [{}]{}",
                                    at->second.file->file.path(), found.name, fmt::join(found.shape, ", "),
                                    fmt::join(expected, ", "), tensor.conv1d ? " (a Conv1D: [in, out])" : ""));
      if (found.dtype != "F32" && found.dtype != "F16" && found.dtype != "BF16")
        throw DataError(fmt::format("{}: tensor {}: found {}, expected F32, F16 or BF16", at->second.file->file.path(),
                                    found.name, found.dtype));
    }
    // A tied head may be stored too, where it equals the embedding.
    if (places_.contains("lm_head.weight") && known.insert("lm_head.weight").second) {
      if (places_.at("lm_head.weight").tensor->shape != places_.at("wte.weight").tensor->shape ||
          read_as_stored("lm_head.weight") != read_as_stored("wte.weight"))
        throw DataError(path_ + ": tensor lm_head.weight differs from wte.weight, but config.json ties them");
    }
    for (const auto& [name, place] : places_)
      if (!known.contains(name))
        throw DataError(fmt::format("{}: tensor {}: not a tensor of a GPT-2 of {} layers", place.file->file.path(),
                                    place.tensor->name.substr(0, 200), config_.model.num_layers));
  }

  std::vector<float> read_as_stored(const std::string& hf_name) const {
    const auto [file, tensor] = places_.at(hf_name);
    int64_t numel = 1;
    for (const int64_t n : tensor->shape) numel *= n;
    std::vector<float> values(static_cast<size_t>(numel));
    read_as_float(file->file, file->content.data_offset + tensor->begin, tensor->dtype, values);
    return values;
  }

  std::string folder_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Place> places_;  // by the name without prefix
};

}  // namespace

bool is_hf_model(const std::string& path) {
  if (!is_folder(path)) return path.ends_with(".safetensors") && file_exists(path);
  return file_exists(path + kFile) || file_exists(path + kIndex) || file_exists(path + kConfig);
}

std::unique_ptr<GptWeights> open_hf_gpt2(const std::string& path) { return std::make_unique<HfWeights>(path); }

void write_hf_gpt2(GptWeights& weights, const std::string& folder, DType dtype) {
  const ModelConfig& model = weights.config().model;
  expect_gpt2(model, folder + ": Hugging Face's GPT-2");
  make_folder(folder);
  if (!list_directory(folder).empty())
    throw ConfigError(folder + ": is not empty; expected an empty folder or a new name");

  SafeTensors content{.metadata = {{"format", "pt"}}};
  for (const GptTensor& tensor : weights.tensors()) {
    const bool head = tensor.hf_name.starts_with("lm_head.");
    const int64_t begin = content.data_bytes(), bytes = tensor.shape.numel() * size_of(dtype);
    content.tensors.push_back({(head ? "" : std::string(kHfPrefix)) + tensor.hf_name,
                               dtype == DType::bf16 ? "BF16" : "F32", shape_in_file(tensor), begin, begin + bytes});
  }
  OutputFile file(folder + kFile);
  file.write(safetensors_header(content));
  for (const GptTensor& tensor : weights.tensors()) {
    std::vector<float> values = weights.read(tensor);
    if (tensor.query_key_value) values = reorder_heads(values, model, HeadOrder::by_part);
    if (tensor.conv1d) values = transposed(values, tensor.shape[0], tensor.shape[1]);
    write_floats(file, values, dtype);
  }
  file.commit();
  write_file(folder + kConfig, config_json(model, dtype));
}

}  // namespace trivet
