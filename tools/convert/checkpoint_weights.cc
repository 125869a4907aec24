#include <algorithm>
#include <fmt/format.h>

#include "base/files.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/shard.h"
#include "engine/checkpoint/store.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "tools/convert/gpt_weights.h"

namespace trivet {
namespace {

class CheckpointWeights : public GptWeights {
 public:
  explicit CheckpointWeights(const std::string& directory)
      : GptWeights(directory), checkpoint_(open_checkpoint(directory)) {
    set_model(parse_saved_config(checkpoint_.state.config, directory + "/train_state.json"));
  }

  std::vector<float> read(const ModelTensor& tensor) override {
    return read_tensor(checkpoint_, tensor.param.name, tensor.param.global_shape);
  }
  const OpenCheckpoint* checkpoint() const override { return &checkpoint_; }

 private:
  OpenCheckpoint checkpoint_;
};

// The model keys: the only known part of a converted model's configuration.
std::map<std::string, std::string> model_values(const Config& config) {
  std::map<std::string, std::string> values;
  for (const Field& field : fields())
    if (field.section() == "model") values[std::string(field.name)] = format_field(field, config);
  return values;
}

void write_files(GptWeights& weights, const KnownTokenizer& tokenizer, const Disk& disk, const std::string& folder) {
  std::vector<StoredSlice> slices;
  int64_t largest = 0;
  for (const ModelTensor& tensor : weights.tensors()) {
    largest = std::max(largest, tensor.param.global_shape.numel());
    for (const char* prefix : {"", kFirstMoment, kSecondMoment})
      slices.push_back({.name = prefix + tensor.param.name, .slice = whole_slice(tensor.param.global_shape)});
  }
  ShardWriter shard(disk, folder, "rank-00000.safetensors", std::move(slices));
  const std::vector<float> zeros(static_cast<size_t>(largest));
  for (const ModelTensor& tensor : weights.tensors()) {
    shard.add(weights.read(tensor).data());
    shard.add(zeros.data());
    shard.add(zeros.data());
  }
  Manifest manifest{.step = 0, .run = "converted", .layout = "converted from " + weights.path()};
  manifest.files.push_back(shard.finish());
  TrainState state{.config = model_values(weights.config()), .tokenizer = tokenizer.fingerprint};
  std::string config = "# The model of a conversion, as its files describe it.\nmodel:\n";
  for (const auto& [name, value] : state.config)
    config += fmt::format("  {}: {}\n", name.substr(name.find('.') + 1), value);
  if (!tokenizer.path.empty()) state.config["data.tokenizer_model"] = tokenizer.path;
  write_manifest(disk, folder, std::move(manifest), state, config);
}

}  // namespace

std::unique_ptr<GptWeights> open_checkpoint_weights(const std::string& directory) {
  return std::make_unique<CheckpointWeights>(directory);
}

std::unique_ptr<GptWeights> open_gpt_weights(const std::string& path) {
  if (is_hf_model(path)) return open_hf(path);
  if (is_llmc_model(path)) return open_llmc(path);
  return open_checkpoint_weights(find_checkpoints(path).front());
}

void write_checkpoint(GptWeights& weights, const std::string& directory, const KnownTokenizer& tokenizer) {
  if (file_exists(directory)) throw ConfigError(directory + ": exists already; expected a new name");
  write_folder(directory,
               [&](const Disk& disk, const std::string& folder) { write_files(weights, tokenizer, disk, folder); });
}

}  // namespace trivet
