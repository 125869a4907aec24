// Hugging Face's GPT-2: a folder of config.json and model.safetensors, or of shards that model.safetensors.index.json
// lists. Names may have the prefix "transformer.", and the masks of old files are ignored; any other tensor that is
// unknown, missing or of another shape is refused by name. Read as fp32 from F32, F16 and BF16.
//
// (transformers, models/gpt2/modeling_gpt2.py and configuration_gpt2.py.)
#pragma once

#include "engine/checkpoint/gpt_weights.h"
#include "kernels/base/dtype.h"

namespace trivet {

bool is_hf_model(const std::string& path);
// `path`: the folder, or a .safetensors file with config.json beside it. Throws DataError, IoError.
std::unique_ptr<GptWeights> open_hf_gpt2(const std::string& path);

// Writes config.json and model.safetensors, with the prefix "transformer.", into `folder`, which is new or empty. A
// tied head is not written. dtype: f32 or bf16, rounded to nearest even.
void write_hf_gpt2(GptWeights& weights, const std::string& folder, DType dtype);

}  // namespace trivet
