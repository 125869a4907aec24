// A Hugging Face model: a folder with config.json and either model.safetensors or the shards listed in
// model.safetensors.index.json. Names may lack the prefix "transformer." or "model.", and buffers in old files are
// ignored; any other tensor that is unknown, missing or of the wrong shape is rejected by name. F32, F16 and BF16 are
// read as fp32.
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "base/files.h"
#include "base/json.h"
#include "engine/checkpoint/disk.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/config/validate.h"
#include "tools/convert/hf_config.h"

namespace trivet {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kLargestIndex = 16 << 20, kLargestTokenizer = 256 << 20;
constexpr const char* kFile = "/model.safetensors";
constexpr const char* kIndex = "/model.safetensors.index.json";
constexpr const char* kConfig = "/config.json";

// Masks and RoPE frequencies that old versions stored with the weights.
bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

bool is_folder(const std::string& path) {
  std::error_code ignored;  // an inaccessible path is not a folder; opening it reports why
  return fs::is_directory(path, ignored);
}

// True if the name denotes a file in the model's own folder.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.size() < 256 && name.find_first_of("/\\") == std::string::npos &&
         name.find('\0') == std::string::npos;
}

int64_t numel_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

class HfWeights : public GptWeights {
 public:
  explicit HfWeights(const std::string& path) : GptWeights(path) {
    const bool folder = is_folder(path);
    folder_ = folder ? path : fs::path(path).parent_path().string();
    if (folder_.empty()) folder_ = ".";
    if (!file_exists(folder_ + kConfig)) throw DataError(folder_ + kConfig + ": not found; it describes the model");
    Config config;
    config.model = read_hf_config(folder_ + kConfig, unread_, zero_biases_);
    for (const char* name : {"generation_config.json", "special_tokens_map.json", "chat_template.jinja"})
      if (file_exists(folder_ + "/" + name)) unread_.emplace_back(name);
    if (!zero_biases_.empty())
      unread_.push_back(fmt::format("that the layers of {} have no biases: a run trains biases that start at zero",
                                    zero_biases_.substr(1, zero_biases_.size() - 2)));
    set_model(config);
    spec_ = model_spec_of(config_.model);
    if (!folder) open(path, nullptr);
    else if (file_exists(folder_ + kFile)) open(folder_ + kFile, nullptr);
    else open_index();
    check_tensors();
  }

  std::vector<float> read(const ModelTensor& tensor) override {
    const Shape& shape = tensor.param.global_shape;
    std::vector<float> values(static_cast<size_t>(shape.numel()));
    std::span<float> rest = values;
    const std::vector<HfTensor> parts = hf_tensors(spec_, tensor);
    for (const HfTensor& part : parts) {
      const size_t n = static_cast<size_t>(numel_of(part.shape));
      if (!is_zero_bias(part)) read_as_stored(part.name, rest.first(n));
      rest = rest.subspan(n);
    }
    if (parts[0].conv1d) values = transposed(values, parts[0].shape[0], parts[0].shape[1]);
    return tensor.module == Module::qkv ? reorder_heads(values, spec_.attention, HeadOrder::by_group) : values;
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

  // `expected`: the names of this file's tensors in the index; null: there is no index.
  void open(const std::string& path, const std::set<std::string>* expected) {
    if (expected && !file_exists(path))
      throw DataError(fmt::format("{}: not found; {} lists it as the file of {}", path, kIndex + 1,
                                  expected->begin()->substr(0, 200)));
    const File& file = *files_.emplace_back(std::make_unique<File>(path));
    if (expected) {
      std::set<std::string_view> names;
      for (const SafeTensor& tensor : file.content.tensors) names.insert(tensor.name);
      for (const std::string& name : *expected)
        if (!names.contains(name))
          throw DataError(fmt::format("{}: has no tensor '{}', which {} lists", path, name.substr(0, 200), kIndex + 1));
    }
    for (const SafeTensor& tensor : file.content.tensors) {
      std::string name = tensor.name;
      if (const std::string_view prefix = hf_prefix(spec_); name.starts_with(prefix)) name.erase(0, prefix.size());
      if (!is_buffer(name) && !places_.try_emplace(name, Place{&file, &tensor}).second)
        throw DataError(fmt::format("{}: tensor '{}': appears twice in the model", path, tensor.name.substr(0, 200)));
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
        map.refuse(name.c_str(), "'" + file.substr(0, 200) + "'", "the name of a file in the model's folder");
      tensors[file].insert(name);
    }
    for (const auto& [file, names] : tensors) open(folder_ + "/" + file, &names);
  }

  void check_tensors() {
    std::set<std::string> known;
    for (const ModelTensor& tensor : tensors_)
      for (const HfTensor& part : hf_tensors(spec_, tensor)) {
        if (is_zero_bias(part)) continue;
        known.insert(part.name);
        check_tensor(part);
      }
    // A tied head may also be stored if it equals the embedding.
    const std::string head = "lm_head.weight", embedding = hf_tensors(spec_, tensors_[0])[0].name;
    if (places_.contains(head) && known.insert(head).second) {
      HfTensor expected = hf_tensors(spec_, tensors_[0])[0];
      expected.name = head;
      check_tensor(expected);
      const auto values = [&](const std::string& name) {
        std::vector<float> of_tensor(static_cast<size_t>(numel_of(expected.shape)));
        read_as_stored(name, of_tensor);
        return of_tensor;
      };
      if (values(head) != values(embedding))
        throw DataError(
            fmt::format("{}: tensor {} differs from {}, but config.json ties them", path_, head, embedding));
    }
    for (const auto& [name, place] : places_)
      if (!known.contains(name))
        throw DataError(fmt::format("{}: tensor {}: not a tensor of the model of {} layers that {} describes",
                                    place.file->file.path(), place.tensor->name.substr(0, 200),
                                    config_.model.num_layers, kConfig + 1));
  }

  bool is_zero_bias(const HfTensor& part) const {
    return !zero_biases_.empty() && part.name.ends_with(".bias") && part.name.find(zero_biases_) != part.name.npos;
  }

  void check_tensor(const HfTensor& expected) const {
    const auto at = places_.find(expected.name);
    if (at == places_.end())
      throw DataError(fmt::format("{}: tensor {}: not found, expected the shape [{}]", path_, expected.name,
                                  fmt::join(expected.shape, ", ")));
    const SafeTensor& found = *at->second.tensor;
    const std::string where = fmt::format("{}: tensor {}", at->second.file->file.path(), found.name);
    if (found.shape != expected.shape)
      throw DataError(fmt::format("{}: found the shape [{}], expected [{}]{}", where, fmt::join(found.shape, ", "),
                                  fmt::join(expected.shape, ", "), expected.conv1d ? " (a Conv1D: [in, out])" : ""));
    if (found.dtype != "F32" && found.dtype != "F16" && found.dtype != "BF16")
      throw DataError(fmt::format("{}: found {}, expected F32, F16 or BF16", where, found.dtype));
  }

  void read_as_stored(const std::string& name, std::span<float> to) const {
    const auto [file, tensor] = places_.at(name);
    read_as_float(file->file, file->content.data_offset + tensor->begin, tensor->dtype, to);
    expect_finite(to, fmt::format("{}: tensor {}", file->file.path(), tensor->name));
  }

  std::string folder_, zero_biases_;
  ModelSpec spec_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Place> places_;  // by the name without prefix
};

// ---- writing

// Assigns tensors to files like transformers' save_pretrained: in order, starting a new file whenever the next tensor
// would make the current one too large.
std::vector<SafeTensors> shards_of(const GptWeights& weights, const HfExport& options) {
  const ModelSpec spec = model_spec_of(weights.config().model);
  std::vector<SafeTensors> shards{{.metadata = {{"format", "pt"}}}};
  for (const ModelTensor& tensor : weights.tensors())
    for (HfTensor& part : hf_tensors(spec, tensor)) {
      const int64_t bytes = numel_of(part.shape) * size_of(options.dtype);
      if (const int64_t there = shards.back().data_bytes(); there > 0 && there + bytes > options.max_shard_bytes)
        shards.push_back({.metadata = shards[0].metadata});
      const int64_t begin = shards.back().data_bytes();
      const bool head = tensor.module == Module::output_layer;
      shards.back().tensors.push_back({(head ? "" : std::string(hf_prefix(spec))) + part.name,
                                       options.dtype == DType::bf16 ? "BF16" : "F32", std::move(part.shape), begin,
                                       begin + bytes});
    }
  return shards;
}

std::string shard_name(size_t shard, size_t shards) {
  return shards == 1 ? kFile : fmt::format("/model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

std::string index_json(const std::vector<SafeTensors>& shards) {
  json map = json::object();
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    total += shards[i].data_bytes();
    for (const SafeTensor& tensor : shards[i].tensors) map[tensor.name] = shard_name(i, shards.size()).substr(1);
  }
  return json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n";
}

void write_tensors(GptWeights& weights, const std::string& folder, const HfExport& options,
                   const std::vector<SafeTensors>& shards) {
  const ModelSpec spec = model_spec_of(weights.config().model);
  std::optional<OutputFile> file;
  size_t shard = 0, written = 0;  // written: tensors written to this shard
  for (const ModelTensor& tensor : weights.tensors()) {
    std::vector<float> values = weights.read(tensor);
    if (tensor.module == Module::qkv) values = reorder_heads(values, spec.attention, HeadOrder::by_part);
    const std::vector<HfTensor> parts = hf_tensors(spec, tensor);
    if (parts[0].conv1d) values = transposed(values, parts[0].shape[1], parts[0].shape[0]);
    std::span<const float> rest = values;
    for (const HfTensor& part : parts) {
      if (written == 0) {
        file.emplace(folder + shard_name(shard, shards.size()));
        file->write(safetensors_header(shards[shard]));
      }
      const auto n = static_cast<size_t>(numel_of(part.shape));
      write_floats(*file, rest.first(n), options.dtype, part.name);
      rest = rest.subspan(n);
      if (++written < shards[shard].tensors.size()) continue;
      file->commit();
      ++shard, written = 0;
    }
  }
}

}  // namespace

bool is_hf_model(const std::string& path) {
  if (!is_folder(path)) return path.ends_with(".safetensors") && file_exists(path);
  return file_exists(path + kFile) || file_exists(path + kIndex) || file_exists(path + kConfig);
}

std::unique_ptr<GptWeights> open_hf(const std::string& path) { return std::make_unique<HfWeights>(path); }

void write_hf(GptWeights& weights, const std::string& path, const HfExport& options) {
  const std::string config = to_hf_config(weights.config().model, path, options);
  if (file_exists(path) && !(is_folder(path) && list_directory(path).empty()))
    throw ConfigError(path + ": exists already and is not empty; expected an empty folder or a new name");
  const std::vector<SafeTensors> shards = shards_of(weights, options);
  write_folder(path, [&](const Disk&, const std::string& folder) {
    write_tensors(weights, folder, options, shards);
    if (shards.size() > 1) write_file(folder + kIndex, index_json(shards));
    for (const std::string name : {"tokenizer.json", "tokenizer_config.json"})
      if (const std::string& file = options.tokenizer; !file.empty())
        write_file(folder + "/" + name,
                   read_small_file(file.substr(0, file.rfind("tokenizer.json")) + name, kLargestTokenizer));
    write_file(folder + kConfig, config);
  });
}

}  // namespace trivet
