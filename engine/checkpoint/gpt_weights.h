// GptWeights: the weights of a GPT-2 wherever they are kept: in a Trivet checkpoint, a Hugging Face model, an llm.c
// file. Whoever converts reads from one and writes the other, a tensor at a time, so that memory for the largest
// tensors is all that it takes.
//
// In between, tensors have Trivet's names and order of elements. The others' differ in two ways:
//   rows of query, key and value   Trivet, as Megatron, head by head: q k v of head 0, q k v of head 1, …, so that
//                                  tensor parallelism cuts between heads; the others all q, then all k, then all v
//   matrices                       Trivet and llm.c [out, in]; Hugging Face's GPT-2 (Conv1D) [in, out]
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/config/config.h"
#include "engine/model/modules.h"

namespace trivet {

struct GptTensor {
  std::string name;              // Trivet's
  std::string hf_name{};         // without the prefix "transformer."
  Shape shape;                   // Trivet's, without padding
  size_t kind = 0;               // which of a block's, or of the model's: ascends as in an llm.c file
  bool conv1d = false;           // Hugging Face has it transposed
  bool query_key_value = false;  // rows have another order elsewhere
};

// In the order of the forward pass: those that the model's layers declare.
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
  // Throws DataError where the sizes make no model.
  void set_model(const Config& config);

  std::string path_;
  Config config_;
  std::vector<GptTensor> tensors_;
};

// Whatever is at `path`: a Trivet checkpoint (or the newest of a folder or run), a Hugging Face model (its folder or
// .safetensors file), an llm.c model_*.bin. All shapes and sizes have been checked. Throws DataError.
std::unique_ptr<GptWeights> open_gpt_weights(const std::string& path);
std::unique_ptr<GptWeights> open_checkpoint_weights(const std::string& directory);

// Writes a checkpoint that `trivet train --resume` goes on from at step 0, with moments of zero. `directory` must not
// be there yet; it appears when it is whole.
void write_checkpoint(GptWeights& weights, const std::string& directory);

// [rows, cols] to [cols, rows].
std::vector<float> transposed(std::span<const float> matrix, int64_t rows, int64_t cols);
// Rows of query, key and value, of 3 hidden rows in all: from head by head to all of q, of k, of v; and back.
std::vector<float> split_heads(std::span<const float> rows, int64_t heads, int64_t hidden);
std::vector<float> join_heads(std::span<const float> rows, int64_t heads, int64_t hidden);

}  // namespace trivet
