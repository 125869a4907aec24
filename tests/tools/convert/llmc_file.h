// Writes weights that the format supports to an llm.c model_*.bin, as llm.c's train_gpt2.py does, for the tests of its
// reader (tools/convert/llmc.cc describes the format).
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "base/files.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/config/validate.h"
#include "tools/convert/gpt_weights.h"

namespace trivet::test {

inline void write_llmc(GptWeights& weights, const std::string& path, DType dtype = DType::f32) {
  const ModelConfig& model = weights.config().model;
  const int64_t vocab = model.vocab_size.value(), padded = (vocab + 127) / 128 * 128;
  const int64_t values[] = {20240326,         dtype == DType::f32 ? 3 : 5, model.seq_length,  vocab,
                            model.num_layers, model.num_attention_heads,   model.hidden_size, padded};
  std::array<int32_t, 256> header{};
  std::ranges::transform(values, header.begin(), [](int64_t value) { return static_cast<int32_t>(value); });
  // By kind, then by layer.
  std::vector<ModelTensor> tensors = weights.tensors();
  std::ranges::stable_sort(tensors, {}, [](const ModelTensor& tensor) {
    return std::pair(tensor.module, tensor.param.name.ends_with(".bias"));
  });
  OutputFile file(path);
  file.write(header.data(), sizeof header);
  for (const ModelTensor& tensor : tensors) {
    std::vector<float> numbers = weights.read(tensor);
    if (tensor.module == Module::qkv)
      numbers = reorder_heads(numbers, model_spec_of(model).attention, HeadOrder::by_part);
    if (tensor.module == Module::word_embeddings) numbers.resize(static_cast<size_t>(padded * model.hidden_size));
    write_floats(file, numbers, dtype, tensor.param.name);
  }
  file.commit();
}

}  // namespace trivet::test
