// GptWeights: the weights of a model in any format: a Trivet checkpoint, a Hugging Face model, an llm.c file. A
// conversion reads one format and writes another, one tensor at a time, so it needs memory for the largest only.
//
// In memory, tensors use Trivet's names and element order, which is Megatron's. Other formats differ in:
//   q, k, v rows   Trivet orders them by head group, so tensor parallelism splits between groups; the others by part
//   tensors        Trivet and GPT-2 fuse q, k and v; Hugging Face's Llama has three tensors, and two for gate and up
//   matrices       [out, in] in Trivet, llm.c and Llama; [in, out] in Hugging Face's GPT-2 (Conv1D)
// In all of them, RoPE pairs element i of a head with element i + head_dim / 2.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/config/config.h"
#include "engine/model/modules.h"
#include "kernels/base/dtype.h"

namespace trivet {

int64_t parameters_of(const std::vector<ModelTensor>& tensors);

struct OpenCheckpoint;

class GptWeights {
 public:
  explicit GptWeights(std::string path) : path_(std::move(path)) {}
  virtual ~GptWeights() = default;

  const std::string& path() const { return path_; }
  const Config& config() const { return config_; }  // model.*, with every size given, and precision.dtype
  // In the order of the forward pass.
  const std::vector<ModelTensor>& tensors() const { return tensors_; }
  // Entries of the source that Trivet does not use.
  const std::vector<std::string>& unread() const { return unread_; }
  virtual std::vector<float> read(const ModelTensor& tensor) = 0;       // in Trivet's order
  virtual const OpenCheckpoint* checkpoint() const { return nullptr; }  // null: not a Trivet checkpoint

 protected:
  // Throws DataError if the sizes do not form a valid model.
  void set_model(const Config& config);

  std::string path_;
  Config config_;
  std::vector<ModelTensor> tensors_;
  std::vector<std::string> unread_;
};

// Opens `path`: a Trivet checkpoint (or the newest in a folder or run), a Hugging Face model (its folder or
// .safetensors file), or an llm.c model_*.bin. Checks all shapes and sizes. Throws DataError.
std::unique_ptr<GptWeights> open_gpt_weights(const std::string& path);
std::unique_ptr<GptWeights> open_checkpoint_weights(const std::string& directory);

struct KnownTokenizer {
  std::string path{}, fingerprint{};  // the tokenizer file, and Tokenizer::fingerprint(); "": unknown
};
// Writes a checkpoint that `trivet train --resume` resumes at step 0, with zero moments. `directory` must not exist; it
// appears only once it is complete.
void write_checkpoint(GptWeights& weights, const std::string& directory, const KnownTokenizer& tokenizer = {});

// Fills in the sizes derived from others.
Config with_sizes(const ModelConfig& model);
// The model keys whose values differ between `from` and `to`, with the value in `from`: "model.hidden_dropout 0.1".
std::vector<std::string> not_carried(const GptWeights& from, const GptWeights& to);

// Transposes [rows, cols] to [cols, rows].
std::vector<float> transposed(std::span<const float> matrix, int64_t rows, int64_t cols);
// The order of query, key and value rows. by_group: the queries, key and value of group 0, then those of group 1, …;
// by_part: all queries, then all keys, then all values.
enum class HeadOrder { by_group, by_part };
std::vector<float> reorder_heads(std::span<const float> rows, const AttentionSpec& heads, HeadOrder to);

// ---- Hugging Face (hf_weights.cc) and llm.c (llmc.cc)

bool is_hf_model(const std::string& path);
// `path`: the folder, or a .safetensors file with config.json next to it. Throws DataError, IoError.
std::unique_ptr<GptWeights> open_hf(const std::string& path);

struct HfExport {
  DType dtype = DType::f32;                 // or bf16, rounded to nearest even
  int64_t max_shard_bytes = 5'000'000'000;  // a larger tensor gets its own file
  std::string tokenizer{};                  // a tokenizer.json, with tokenizer_config.json next to it; "": none
  int64_t bos = -1, eos = -1;               // token ids; -1: unknown
};
// Writes config.json, safetensors files (sharded and named as by transformers' save_pretrained) and the tokenizer's
// files into `folder`, which must be new or empty. Writes all of them or none. A tied head is not written. Throws
// ConfigError if no transformers architecture that Trivet can write computes this model.
void write_hf(GptWeights& weights, const std::string& folder, const HfExport& options);

bool is_llmc_model(const std::string& path);  // true if the file begins with the magic number
std::unique_ptr<GptWeights> open_llmc(const std::string& path);

}  // namespace trivet
