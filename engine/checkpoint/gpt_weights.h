// GptWeights: the weights of a model in any format: a Trivet checkpoint, a Hugging Face model, an llm.c file. A
// conversion reads one and writes another a tensor at a time, so its memory is that of the largest tensors.
//
// In between, tensors have Trivet's names and order of elements, which is Megatron's. The other formats differ in two:
//   rows of query, key and value   Trivet by head, so that tensor parallelism splits between heads; the others by part
//   matrices                       Trivet and llm.c [out, in]; Hugging Face's GPT-2 (Conv1D) [in, out]
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

struct GptTensor {
  std::string name;              // Trivet's
  std::string hf_name{};         // without the prefix "transformer."
  Shape shape;                   // Trivet's, without padding
  size_t kind = 0;               // ascends as in an llm.c file; the same in all blocks
  bool conv1d = false;           // Hugging Face has it transposed
  bool query_key_value = false;  // rows have another order elsewhere
};

// The parameters that the model's layers declare, in the order of the forward pass.
std::vector<GptTensor> gpt_tensors(const ModelSpec& model);
int64_t parameters_of(const std::vector<GptTensor>& tensors);

class GptWeights {
 public:
  explicit GptWeights(std::string path) : path_(std::move(path)) {}
  virtual ~GptWeights() = default;

  const std::string& path() const { return path_; }
  const Config& config() const { return config_; }  // model.*, with every size given, and precision.dtype
  const std::vector<GptTensor>& tensors() const { return tensors_; }
  virtual std::vector<float> read(const GptTensor& tensor) = 0;  // in Trivet's order

 protected:
  // Throws DataError where the sizes are not those of a model.
  void set_model(const Config& config);

  std::string path_;
  Config config_;
  std::vector<GptTensor> tensors_;
};

// Opens `path`: a Trivet checkpoint (or the newest of a folder or run), a Hugging Face model (its folder or
// .safetensors file), or an llm.c model_*.bin. Checks all shapes and sizes. Throws DataError.
std::unique_ptr<GptWeights> open_gpt_weights(const std::string& path);
std::unique_ptr<GptWeights> open_checkpoint_weights(const std::string& directory);

// Writes a checkpoint that `trivet train --resume` resumes at step 0, with zero moments. `directory` must not exist; it
// appears when it is complete.
void write_checkpoint(GptWeights& weights, const std::string& directory);

// Throws ConfigError where the model is no GPT-2, for a format, or a file, that holds nothing else.
void expect_gpt2(const ModelConfig& model, const std::string& what);

// [rows, cols] to [cols, rows].
std::vector<float> transposed(std::span<const float> matrix, int64_t rows, int64_t cols);
// The rows of query, key and value: q k v of head 0, q k v of head 1, …, or all q, then all k, then all v.
enum class HeadOrder { by_head, by_part };
std::vector<float> reorder_heads(std::span<const float> rows, const ModelConfig& model, HeadOrder to);

// ---- Hugging Face (hf_gpt2.cc) and llm.c (llmc.cc)

bool is_hf_model(const std::string& path);
// `path`: the folder, or a .safetensors file with config.json beside it. Throws DataError, IoError.
std::unique_ptr<GptWeights> open_hf_gpt2(const std::string& path);

// Writes config.json and model.safetensors, with the prefix "transformer.", into `folder`, which is new or empty. A
// tied head is not written. dtype: f32 or bf16, rounded to nearest even.
void write_hf_gpt2(GptWeights& weights, const std::string& folder, DType dtype);

bool is_llmc_model(const std::string& path);  // begins with the magic number
std::unique_ptr<GptWeights> open_llmc(const std::string& path);

// Throws ConfigError for a model that the format cannot hold, and where `path` exists.
void write_llmc(GptWeights& weights, const std::string& path, DType dtype);

}  // namespace trivet
