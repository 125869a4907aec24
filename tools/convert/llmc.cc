// llm.c's model_*.bin: a header of 256 int32, then each kind of tensor for all layers.
//
//   [0] 20240326  [1] version: 3 fp32, 5 bf16  [2] positions  [3] vocabulary  [4] layers  [5] heads  [6] channels
//   [7] padded vocabulary: rows of the first tensor
//
// Supports one architecture only: tied embeddings, MLP width four times the hidden size, layernorm_epsilon 1e-5.
// (github.com/karpathy/llm.c, train_gpt2.py, write_model.)
#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>

#include "engine/checkpoint/safetensors.h"
#include "engine/config/validate.h"
#include "tools/convert/gpt_weights.h"

namespace trivet {
namespace {

constexpr int32_t kMagic = 20240326, kFp32 = 3, kBf16 = 5;
using Header = std::array<int32_t, 256>;
constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(Header));

// A sort key that ascends in the file and is the same in all blocks: modules in declaration order, weight before bias.
size_t kind_of(const ModelTensor& tensor) {
  return 2 * static_cast<size_t>(tensor.module) + (tensor.param.name.ends_with(".bias") ? 1 : 0);
}

// In file order: by kind, and within a kind by layer.
std::vector<ModelTensor> in_file_order(std::vector<ModelTensor> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const ModelTensor& a, const ModelTensor& b) { return kind_of(a) < kind_of(b); });
  return tensors;
}

bool is_word_embedding(const ModelTensor& tensor) { return tensor.module == Module::word_embeddings; }

class LlmcWeights : public GptWeights {
 public:
  explicit LlmcWeights(const std::string& path) : GptWeights(path), file_(path) {
    Header header;
    if (file_.size() < kHeaderBytes)
      throw DataError(
          fmt::format("{}: has {} bytes, expected at least the {} of a header", path, file_.size(), kHeaderBytes));
    file_.read_at(0, std::as_writable_bytes(std::span(header)));
    if (header[0] != kMagic)
      throw DataError(fmt::format("{}: found the magic number {}, expected {}", path, header[0], kMagic));
    if (header[1] != kFp32 && header[1] != kBf16)
      throw DataError(
          fmt::format("{}: found version {}, expected {} (fp32) or {} (bf16)", path, header[1], kFp32, kBf16));
    dtype_ = header[1] == kFp32 ? DType::f32 : DType::bf16;
    Config config;
    config.model.seq_length = header[2];
    config.model.vocab_size = header[3];
    config.model.num_layers = header[4];
    config.model.num_attention_heads = header[5];
    config.model.hidden_size = header[6];
    config.model.ffn_hidden_size = int64_t{4} * header[6];
    set_model(config);
    if (header[7] < header[3])
      throw DataError(fmt::format("{}: found {} rows for a vocabulary of {}, expected at least as many", path,
                                  header[7], header[3]));
    int64_t end = kHeaderBytes;
    for (const ModelTensor& tensor : in_file_order(tensors_)) {
      offsets_[tensor.param.name] = end;
      const int64_t padding =
          is_word_embedding(tensor) ? int64_t{header[7] - header[3]} * tensor.param.global_shape[1] : 0;
      end += (tensor.param.global_shape.numel() + padding) * size_of(dtype_);
    }
    if (end != file_.size())
      throw DataError(fmt::format("{}: has {} bytes, expected {} of a model of these sizes", path, file_.size(), end));
  }

  std::vector<float> read(const ModelTensor& tensor) override {
    std::vector<float> values(static_cast<size_t>(tensor.param.global_shape.numel()));
    read_as_float(file_, offsets_.at(tensor.param.name), dtype_ == DType::f32 ? "F32" : "BF16", values);
    expect_finite(values, fmt::format("{}: tensor {}", path_, tensor.param.name));
    return tensor.module == Module::qkv
               ? reorder_heads(values, model_spec_of(config_.model).attention, HeadOrder::by_group)
               : values;
  }

 private:
  InputFile file_;
  DType dtype_ = DType::f32;
  std::map<std::string, int64_t> offsets_;
};

}  // namespace

bool is_llmc_model(const std::string& path) {
  if (std::error_code ignored; !std::filesystem::is_regular_file(path, ignored)) return false;
  const InputFile file(path);
  int32_t magic = 0;
  if (file.size() >= kHeaderBytes) file.read_at(0, std::as_writable_bytes(std::span(&magic, 1)));
  return magic == kMagic;
}

std::unique_ptr<GptWeights> open_llmc(const std::string& path) { return std::make_unique<LlmcWeights>(path); }

}  // namespace trivet
