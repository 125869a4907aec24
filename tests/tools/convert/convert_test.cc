// Weights converted between formats: models saved by Hugging Face's transformers (tests/golden/make_hf_golden.py) give
// the same logits here, and every round trip restores their bits.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>
#include <set>
#include <sstream>

#include "base/json.h"
#include "engine/checkpoint/disk.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/config/fields.h"
#include "engine/train/inference.h"
#include "parallel/comm/world.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"
#include "tests/support/where.h"
#include "tests/tools/convert/llmc_file.h"
#include "tools/convert/gpt_weights.h"
#include "tools/convert/hf_config.h"

namespace trivet {
namespace {

namespace fs = std::filesystem;

const std::string kHf = source_path("tests/golden/hf_gpt2");
const std::string kLlama = source_path("tests/golden/hf_llama"), kQwen2 = source_path("tests/golden/hf_qwen2");
const std::string kQwen3 = source_path("tests/golden/hf_qwen3");

// All weights, in Trivet's layout.
std::vector<std::vector<float>> weights_of(const std::string& path) {
  const auto weights = open_gpt_weights(path);
  std::vector<std::vector<float>> all;
  for (const ModelTensor& tensor : weights->tensors()) all.push_back(weights->read(tensor));
  return all;
}

std::string error_of(const std::string& path) {
  try {
    open_gpt_weights(path);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// Every tensor of a folder's safetensors files, in fp32.
std::map<std::string, std::vector<float>> tensors_of(const std::string& folder) {
  std::map<std::string, std::vector<float>> tensors;
  for (const std::string& name : list_directory(folder)) {
    if (!name.ends_with(".safetensors")) continue;
    const InputFile file(folder + "/" + name);
    const SafeTensors content = read_safetensors(file);
    for (const SafeTensor& tensor : content.tensors) {
      std::vector<float>& values = tensors[tensor.name];
      values.resize(static_cast<size_t>((tensor.end - tensor.begin) / 4));
      read_as_float(file, content.data_offset + tensor.begin, tensor.dtype, values);
    }
  }
  return tensors;
}

// A golden model with other names, shapes or values.
class Edited {
 public:
  explicit Edited(const std::string& folder = kHf) {
    for (const std::string& name : list_directory(folder)) {
      if (!name.ends_with(".safetensors")) continue;
      const InputFile file(folder + "/" + name);
      const SafeTensors content = read_safetensors(file);
      for (const SafeTensor& tensor : content.tensors) {
        std::string bytes(static_cast<size_t>(tensor.end - tensor.begin), '\0');
        file.read_at(content.data_offset + tensor.begin, std::as_writable_bytes(std::span(bytes)));
        tensors.push_back({tensor.name, tensor.shape, bytes});
      }
    }
    config = parse_json(read_text(folder + "/config.json"));
  }
  struct One {
    std::string name;
    std::vector<int64_t> shape;
    std::string bytes;
    std::string dtype = "F32";
  };
  One& find(const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const One& t) { return t.name == name; });
  }
  static void write_file(const std::string& path, const std::vector<One>& tensors) {
    SafeTensors content;
    std::string data;
    for (const One& tensor : tensors) {
      const auto begin = static_cast<int64_t>(data.size());
      data += tensor.bytes;
      content.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, begin, static_cast<int64_t>(data.size())});
    }
    write_text(path, safetensors_header(content) + data);
  }
  void write(const std::string& folder) const {
    fs::create_directories(folder);
    write_file(folder + "/model.safetensors", tensors);
    write_text(folder + "/config.json", config.dump());
  }

  std::vector<One> tensors;
  nlohmann::json config;
};

// The largest difference from the folder's logits.json, relative to the largest logit, when run on t x p ranks.
double logits_differ_by(const std::string& folder, int t, int p) {
  const TempDir dir;
  write_checkpoint(*open_gpt_weights(folder), dir / "step-00000000");
  const auto golden = parse_json(read_text(folder + "/logits.json"));
  const std::vector<int32_t> tokens = golden["tokens"];
  double difference = 0, scale = 0;
  run_thread_ranks(t * p, [&](Communicator& world) {
    const OpenCheckpoint checkpoint = open_checkpoint(dir / "step-00000000");
    const std::vector<std::string> sets{"device.threads_per_rank=1"};
    LoadedConfig loaded = inference_config(checkpoint, t, p, sets);
    const Layout layout = resolve(loaded, {.world_size = world.size()});
    const auto model = open_model(loaded.config, layout, world, checkpoint, static_cast<int64_t>(tokens.size()));
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<float> logits = model->next_token_logits(std::span(tokens).first(i + 1));
      const std::vector<double> expected = golden["logits"][i];
      ASSERT_EQ(logits.size(), expected.size());
      for (size_t v = 0; v < logits.size() && world.rank() == 0; ++v) {
        scale = std::max(scale, std::abs(expected[v]));
        difference = std::max(difference, std::abs(logits[v] - expected[v]));
      }
    }
  });
  return difference / scale;
}

TEST(Convert, GivesTheLogitsOfHuggingFace) {
  for (const std::string& folder : {kHf, kLlama, kQwen2, kQwen3})
    for (const auto& [t, p] : {std::pair{1, 1}, {2, 2}})
      EXPECT_LT(logits_differ_by(folder, t, p), 1e-5) << folder << " on " << t << " x " << p << " ranks";
  // and models converted by hand, whose logits transformers rounded to fp32
  const char* const more = std::getenv("TRIVET_HF_MODELS");
  std::istringstream folders(more ? more : "");
  for (std::string folder; folders >> folder;) {
    const double difference = logits_differ_by(folder, 1, 1);
    EXPECT_LT(difference, 1e-4) << folder;
    std::printf("%s: logits differ by %.2g of the largest\n", folder.c_str(), difference);
  }
}

TEST(Convert, LlamasComeBackBitForBit) {
  for (const std::string& folder : {kLlama, kQwen2, kQwen3}) {
    // when: Hugging Face -> Trivet -> Hugging Face, in shards
    const TempDir dir;
    write_checkpoint(*open_gpt_weights(folder), dir / "trivet");
    const auto weights = open_gpt_weights(dir / "trivet");
    write_hf(*weights, dir / "hf", {.max_shard_bytes = 16'000, .bos = 0, .eos = 0});
    // then: tensors and configuration equal transformers', and so do the weights read back
    EXPECT_EQ(tensors_of(dir / "hf"), tensors_of(folder));
    EXPECT_EQ(weights_of(dir / "hf"), weights_of(folder));
    EXPECT_TRUE(not_carried(*weights, *open_gpt_weights(dir / "hf")).empty());
    const auto ours = parse_json(read_text(dir / "hf/config.json"));
    const auto theirs = parse_json(read_text(folder + "/config.json"));
    for (const auto& [key, value] : theirs.items())
      if (ours.contains(key) && key != "rope_parameters") {
        EXPECT_EQ(ours[key], value) << folder << ": " << key;
      }
    for (const char* key : {"num_key_value_heads", "rms_norm_eps", "vocab_size", "max_position_embeddings"})
      EXPECT_TRUE(ours.contains(key)) << key;
    // and both versions of transformers find their keys: v4 rope_scaling and rope_theta, v5 rope_parameters
    EXPECT_EQ(ours["rope_theta"], 500);
    EXPECT_EQ(ours["rope_parameters"]["rope_theta"], 500);
    EXPECT_EQ(ours["rope_parameters"]["rope_type"], folder == kLlama ? "llama3" : "default");
    EXPECT_EQ(ours["rope_scaling"].is_null(), folder != kLlama);
  }
}

// transformers' rule: tensors in order; a new file begins if the next tensor would make the current one too large.
TEST(Convert, ShardsHoldWhatTheyMay) {
  const TempDir dir;
  const auto weights = open_gpt_weights(kQwen2);
  const int64_t whole = 4 * parameters_of(weights->tensors());
  for (const int64_t most : {int64_t{1}, int64_t{3000}, whole - 1, whole}) {
    const std::string folder = dir / std::to_string(most);
    write_hf(*weights, folder, {.max_shard_bytes = most});
    EXPECT_EQ(tensors_of(folder), tensors_of(kQwen2)) << most;
    size_t files = 0;
    for (const std::string& name : list_directory(folder)) {
      if (!name.ends_with(".safetensors")) continue;
      const SafeTensors content = read_safetensors(InputFile(folder + "/" + name));
      EXPECT_TRUE(content.data_bytes() <= most || content.tensors.size() == 1) << name;
      ++files;
    }
    EXPECT_EQ(fs::exists(folder + "/model.safetensors"), most == whole);
    EXPECT_EQ(fs::exists(folder + "/model.safetensors.index.json"), most != whole);
    if (most == 1) {
      EXPECT_EQ(files, 27u) << "a file for each tensor";
    }
    if (most != whole) {
      const auto index = parse_json(read_text(folder + "/model.safetensors.index.json"));
      EXPECT_EQ(index["metadata"]["total_size"], whole);
    }
    if (most == 3000) {  // and: a missing file is named
      const std::string gone = folder + "/model-00002-of-" + fmt::format("{:05}", files) + ".safetensors";
      fs::remove(gone);
      EXPECT_TRUE(
          error_of(folder).starts_with(gone + ": not found; model.safetensors.index.json lists it as the file of "));
    }
  }
}

TEST(Convert, ReadsTheVersionsOfALlamasConfiguration) {
  const auto spec_with = [](const std::string& folder, const std::function<void(nlohmann::json&)>& edit) {
    const TempDir dir;
    Edited model(folder);
    edit(model.config);
    model.write(dir / "hf");
    return model_spec_of(open_gpt_weights(dir / "hf")->config().model);
  };
  const auto same = [](nlohmann::json&) {};
  // given: what transformers 4.57 wrote; then: v5's form, both forms or a window over all positions give the same model
  const ModelSpec llama = spec_with(kLlama, same), qwen2 = spec_with(kQwen2, same);
  EXPECT_EQ(llama.rotary, (Rotary{8, 500, 8, 1, 4, 64}));
  EXPECT_EQ(spec_with(kLlama,
                      [](nlohmann::json& c) {
                        c["rope_parameters"] = c["rope_scaling"];
                        c["rope_parameters"]["rope_theta"] = 500;
                        c.erase("rope_theta");
                        c.erase("rope_scaling");
                      }),
            llama);
  EXPECT_EQ(spec_with(kLlama,
                      [](nlohmann::json& c) {
                        c["rope_parameters"] = c["rope_scaling"];
                        c["rope_parameters"]["rope_theta"] = 500;
                        c["rope_scaling"]["type"] = c["rope_scaling"]["rope_type"];
                        c["rope_scaling"].erase("rope_type");
                        c["attention_dropout"] = nullptr;
                      }),
            llama);
  EXPECT_EQ(spec_with(kLlama,
                      [](nlohmann::json& c) {
                        c["model_type"] = "mistral";
                        c["sliding_window"] = 12;
                      }),
            llama);
  EXPECT_EQ(spec_with(kQwen2,
                      [](nlohmann::json& c) {
                        c["rope_theta"] = c["rope_parameters"]["rope_theta"];
                        c.erase("rope_parameters");
                        c["sliding_window"] = 4;  // not in use
                      }),
            qwen2);
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.biases);
  // and: values left to transformers' defaults (Llama 2's files lack theta) or written differently are read correctly
  EXPECT_EQ(spec_with(kLlama,
                      [](nlohmann::json& c) {
                        c.erase("rope_theta");
                        c["rope_scaling"]["original_max_position_embeddings"] = 64.0;
                      }),
            [&] {
              ModelSpec usual = llama;
              usual.rotary.base = 10'000;
              return usual;
            }());
  for (const char* type : {"llama", "mistral"}) {
    const TempDir dir;
    Edited model(kLlama);
    model.config.update({{"model_type", type}, {"num_key_value_heads", nullptr}});  // null: as many as heads
    model.write(dir / "hf");
    EXPECT_TRUE(contains(error_of(dir / "hf"), "k_proj.weight: found the shape [16, 16], expected [64, 16]"));
  }
}

// Llama's two bias switches: if only one is on, zero biases stand in for the missing ones.
TEST(Convert, BiasesOfOneHalfAreZero) {
  const TempDir dir;
  Edited half(kLlama);
  const auto add = [](Edited& model, const std::string& part, int64_t size, char byte) {
    for (const std::string layer : {"0", "1"})
      model.tensors.push_back({fmt::format("model.layers.{}.{}.bias", layer, part),
                               {size},
                               std::string(static_cast<size_t>(4 * size), byte)});
  };
  for (const auto& [part, size] : {std::pair("q_proj", 64), {"k_proj", 16}, {"v_proj", 16}, {"o_proj", 16}})
    add(half, fmt::format("self_attn.{}", part), size, '\1');
  half.config["attention_bias"] = true;
  half.write(dir / "half");
  EXPECT_TRUE(std::ranges::count(open_gpt_weights(dir / "half")->unread(),
                                 "that the layers of mlp have no biases: a run trains biases that start at zero"));
  Edited whole = half;
  for (const auto& [part, size] : {std::pair("gate_proj", 24), {"up_proj", 24}, {"down_proj", 16}})
    add(whole, fmt::format("mlp.{}", part), size, '\0');
  whole.config["mlp_bias"] = true;
  whole.write(dir / "whole");
  EXPECT_EQ(weights_of(dir / "half"), weights_of(dir / "whole"));
  whole.config["mlp_bias"] = false;  // now the MLP's biases are extra tensors
  whole.write(dir / "more");
  EXPECT_TRUE(contains(error_of(dir / "more"), "mlp.down_proj.bias: not a tensor of the model"));
}

TEST(Convert, RefusesALlamaThatItWouldComputeOtherwise) {
  struct Case {
    std::function<void(Edited&)> edit;
    const char* message;
  };
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  const Case cases[] = {
      {[](Edited& m) { m.config["model_type"] = "mixtral"; },
       "model_type: found \"mixtral\", expected gpt2, llama, mistral, qwen2 or qwen3"},
      {[](Edited& m) { m.config["model_type"] = "qwen3"; },
       "tensor layers.0.self_attn.q_norm.weight: not found, expected the shape [8]"},
      {[](Edited& m) {
         m.tensors.push_back({"model.layers.0.self_attn.q_norm.weight", {8}, std::string(32, '\0')});
       },
       "tensor model.layers.0.self_attn.q_norm.weight: not a tensor of the model"},
      {[](Edited& m) { m.config["model_type"] = "qwen3", m.config["attention_bias"] = true; },
       "attention_bias: found true, expected false"},
      {[](Edited& m) { m.config["model_type"] = "qwen3", m.config.erase("head_dim"); },
       "q_proj.weight: found the shape [64, 16], expected [1024, 16]"},  // the default head_dim is 128
      {[&](Edited& m) {
         m.find(up).shape = {16, 24};
       },
       "tensor model.layers.1.mlp.up_proj.weight: found the shape [16, 24], expected [24, 16]"},
      {[&](Edited& m) { m.find(up).name = "model.layers.1.mlp.up_prj.weight"; },
       "tensor layers.1.mlp.up_proj.weight: not found, expected the shape [24, 16]"},
      {[](Edited& m) {
         m.tensors.push_back({"model.layers.0.self_attn.q_proj.bias", {64}, std::string(256, '\0')});
       },
       "tensor model.layers.0.self_attn.q_proj.bias: not a tensor of the model"},
      {[](Edited& m) { m.config["num_key_value_heads"] = 4; }, "k_proj.weight: found the shape [16, 16], expected [32"},
      {[](Edited& m) { m.config["num_key_value_heads"] = 3; }, "8 query heads cannot share 3"},
      {[](Edited& m) { m.config["tie_word_embeddings"] = true; }, "lm_head.weight differs from embed_tokens.weight"},
      {[](Edited& m) { m.config["tie_word_embeddings"] = "no"; }, "tie_word_embeddings: found \"no\""},
      {[](Edited& m) { m.config.erase("intermediate_size"); }, "intermediate_size: found nothing"},
      {[](Edited& m) { m.config["hidden_act"] = "gelu"; }, "hidden_act: found \"gelu\", expected \"silu\""},
      {[](Edited& m) { m.config["mlp_bias"] = true; }, "mlp.gate_proj.bias: not found, expected the shape [24]"},
      {[](Edited& m) { m.config["rope_scaling"]["original_max_position_embeddings"] = 64.5; },
       "original_max_position_embeddings: found 64.5, expected an integer from 1"},
      {[](Edited& m) {
         m.config["quantization_config"] = {{"bits", 4}};
       },
       "quantization_config: found"},
      {[](Edited& m) { m.config["rope_scaling"]["rope_type"] = "yarn"; },
       "rope_scaling: rope_type: found \"yarn\", expected \"llama3\" or \"default\""},
      {[](Edited& m) { m.config["rope_scaling"]["rope_type"] = std::string("a\0b", 3); },
       "rope_scaling: rope_type: found \"a\\u0000b\", expected"},
      {[](Edited& m) { m.config[std::string("a\0b", 3)] = 1; },
       "config.json: the key \"a\\u0000b\" has a NUL character, expected none (in a vocabulary of byte-level BPE"},
      {[](Edited& m) {
         m.config["rope_scaling"]["full_attention"] = {{"rope_theta", 7}};
       },
       "rope_scaling: full_attention: found {\"rope_theta\":7}, expected only factor high_freq_factor"},
      {[](Edited& m) { m.config["rope_scaling"]["short_factor"] = {1}; }, "rope_scaling: short_factor: found [1]"},
      {[](Edited& m) { m.config["rope_scaling"]["type"] = "yarn"; },
       "rope_scaling: type: found \"yarn\", expected \"llama3\""},
      {[](Edited& m) {
         m.config["rope_scaling"] = {{"rope_type", "default"}, {"factor", 8}};
       },
       "rope_scaling: factor: found 8, expected 1"},
      {[](Edited& m) { m.config["rope_scaling"].erase("rope_type"); }, "rope_scaling: rope_type: found nothing"},
      {[](Edited& m) { m.config["rope_scaling"].erase("factor"); }, "rope_scaling: factor: found nothing"},
      {[](Edited& m) { m.config["rope_scaling"]["high_freq_factor"] = 1; }, "high_freq_factor: found 1, expected more"},
      {[](Edited& m) { m.config["rope_theta"] = nullptr; },
       "rope_theta: found null, expected a number, here or in rope"},
      {[](Edited& m) { m.config["rms_norm_eps"] = 0; }, "model.layernorm_epsilon: found 0, expected a number above 0"},
      {[](Edited& m) { m.config["rms_norm_eps"] = -1e-5; }, "model.layernorm_epsilon: found -1e-05, expected a number"},
      {[](Edited& m) { m.config["rms_norm_eps"] = 1e9; }, "model.layernorm_epsilon: found 1000000000"},
      {[](Edited& m) {
         m.config["rope_parameters"] = m.config["rope_scaling"];
         m.config["rope_parameters"]["rope_theta"] = 10000;
       },
       "\"rope_theta\":10000,\"rope_type\":\"llama3\"}, expected what the file says elsewhere"},
      {[](Edited& m) {
         m.config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500}};
       },
       "rope_parameters: found {\"rope_theta\":500,\"rope_type\":\"default\"}, expected what the file says elsewhere"},
      {[](Edited& m) { m.config["partial_rotary_factor"] = 0.5; }, "partial_rotary_factor: found 0.5, expected 1"},
      {[](Edited& m) { m.config["model_type"] = "mistral", m.config["sliding_window"] = 11; },
       "sliding_window: found 11, expected null, or at least max_position_embeddings, 12"},
      {[](Edited& m) { m.config["model_type"] = "mistral", m.config["max_position_embeddings"] = 4097; },
       "sliding_window: found nothing, expected null"},
      {[](Edited& m) {
         m.config["layer_types"] = {"full_attention", "sliding_attention"};
       },
       "layer_types: found"},
  };
  for (const Case& c : cases) {
    const TempDir dir;
    Edited model(kLlama);
    c.edit(model);
    model.write(dir / "hf");
    EXPECT_NE(error_of(dir / "hf").find(c.message), std::string::npos) << c.message << "\n" << error_of(dir / "hf");
  }
}

// Qwen's window applies to the layers from max_window_layers on: to one of two, or to none.
TEST(Convert, RefusesAQwenWithAWindow) {
  for (const int from : {1, 2}) {
    const TempDir dir;
    Edited model(kQwen2);
    model.config.update({{"use_sliding_window", true}, {"sliding_window", 4}, {"max_window_layers", from}});
    model.config.erase("layer_types");  // as before transformers 4.53
    model.write(dir / "hf");
    EXPECT_TRUE(contains(error_of(dir / "hf"), "sliding_window: found 4, expected null, or at least max_position"))
        << from << error_of(dir / "hf");
  }
}

TEST(Convert, NamesWhatItHasNoUseFor) {
  using Names = std::vector<std::string>;
  const TempDir dir;
  for (const std::string& folder : {kHf, kLlama, kQwen2})
    EXPECT_EQ(open_gpt_weights(folder)->unread(), (Names{"bos_token_id 0", "eos_token_id 0"})) << folder;
  Edited model;
  model.config.update({{"embd_pdrop", 0.3}, {"eos_token_id", {1, 2}}, {"pad_token_id", 3}, {"new_key", "x"}});
  model.write(dir / "hf");
  write_text(dir / "hf/generation_config.json", "{}");
  EXPECT_EQ(open_gpt_weights(dir / "hf")->unread(),
            (Names{"embd_pdrop 0.3", "bos_token_id 0", "eos_token_id [1,2]", "new_key \"x\"", "pad_token_id 3",
                   "generation_config.json"}));
}

TEST(Convert, EveryWayAroundGivesTheSameBits) {
  const TempDir dir;
  const auto original = weights_of(kHf);
  // when: Hugging Face -> Trivet -> Hugging Face
  write_checkpoint(*open_gpt_weights(kHf), dir / "trivet");
  write_hf(*open_gpt_weights(dir / "trivet"), dir / "hf", {.dtype = DType::f32});
  // then: the output equals that of transformers, tensor by tensor
  EXPECT_EQ(tensors_of(dir / "hf"), tensors_of(kHf));
  EXPECT_EQ(weights_of(dir / "hf"), original);

  // when: llm.c -> Trivet; then: the same weights, without the padding of llm.c's vocabulary
  test::write_llmc(*open_gpt_weights(dir / "trivet"), dir / "model");  // by any name
  EXPECT_EQ(fs::file_size(dir / "model"), 1024 + 4 * (2176 + (128 - 40) * 8));
  write_checkpoint(*open_gpt_weights(dir / "model"), dir / "back");
  EXPECT_EQ(weights_of(dir / "back"), original);
  verify_checkpoint(open_checkpoint(dir / "back"), [](int64_t) {});

  // when: in bf16; then: rounded values are not rounded again
  write_hf(*open_gpt_weights(dir / "trivet"), dir / "hf16", {.dtype = DType::bf16});
  test::write_llmc(*open_gpt_weights(dir / "hf16"), dir / "model16.bin", DType::bf16);
  EXPECT_EQ(weights_of(dir / "hf16"), weights_of(dir / "model16.bin"));
  EXPECT_EQ(static_cast<float>(bf16(original[0][0])), weights_of(dir / "hf16")[0][0]);
}

// Rounding it would give infinity, which every reader rejects.
TEST(Convert, AWeightThatBf16CannotHoldIsNamed) {
  const TempDir dir;
  Edited model;
  const float large = std::numeric_limits<float>::max();
  std::memcpy(model.find("transformer.wte.weight").bytes.data(), &large, sizeof large);
  model.write(dir / "hf");
  write_hf(*open_gpt_weights(dir / "hf"), dir / "fp32", {.dtype = DType::f32});
  const std::string message =
      message_of<DataError>([&] { write_hf(*open_gpt_weights(dir / "hf"), dir / "bf16", {.dtype = DType::bf16}); });
  EXPECT_NE(message.find("a weight of 3.4028235e+38 is too large for bf16"), message.npos) << message;
  EXPECT_TRUE(message.starts_with("wte.weight: ")) << message;
}

TEST(Convert, AnUntiedHeadIsATensorOfItsOwn) {
  // given: the model with a different head
  const TempDir dir;
  Edited model;
  std::string head = model.find("transformer.wte.weight").bytes;
  std::reverse(head.begin(), head.end());
  for (size_t i = 3; i < head.size(); i += 4) head[i] = '\x3e';  // small numbers
  model.tensors.push_back({"lm_head.weight", {40, 8}, head});
  model.config["tie_word_embeddings"] = false;
  model.write(dir / "hf");
  // then: the head survives the round trip
  write_checkpoint(*open_gpt_weights(dir / "hf"), dir / "trivet");
  write_hf(*open_gpt_weights(dir / "trivet"), dir / "again", {.dtype = DType::f32});
  EXPECT_EQ(tensors_of(dir / "again"), tensors_of(dir / "hf"));
}

// A model without weights.
struct Sketch : GptWeights {
  explicit Sketch(const ModelConfig& model) : GptWeights("a sketch") {
    Config config;
    config.model = model;
    set_model(config);
  }
  std::vector<float> read(const ModelTensor&) override { return {}; }
};

TEST(Convert, WritesNoModelThatTheOtherWouldComputeOtherwise) {
  const TempDir dir;
  const ModelConfig llama = test::tiny_model(true).model, gpt = test::tiny_model(false).model;
  const auto problem = [&](ModelConfig model, const std::function<void(ModelConfig&)>& edit) {
    edit(model);
    Sketch sketch(model);
    return message_of<ConfigError>([&] { write_hf(sketch, dir / "hf", {}); });
  };
  const std::string gpt2 = dir / "hf" + ": Hugging Face's GPT2LMHeadModel cannot hold this model: ",
                    other = dir / "hf" + ": Hugging Face's LlamaForCausalLM cannot hold this model: ";
  EXPECT_EQ(problem(llama, [](ModelConfig& m) { m.position_embedding_type = Positions::learned; }),
            gpt2 + "model.num_query_groups: found 4, expected 8");
  EXPECT_EQ(problem(gpt, [](ModelConfig& m) { m.num_query_groups = 2; }),
            gpt2 + "model.num_query_groups: found 2, expected 4");
  EXPECT_EQ(problem(gpt, [](ModelConfig& m) { m.add_bias_linear = false; }),
            gpt2 + "model.add_bias_linear: found false, expected true");
  EXPECT_EQ(problem(gpt, [](ModelConfig& m) { m.position_embedding_type = Positions::rope; }),
            other + "model.normalization: found LayerNorm, expected RMSNorm");
  EXPECT_EQ(problem(llama, [](ModelConfig& m) { m.swiglu = false; }),
            other + "model.swiglu: found false, expected true");
  EXPECT_EQ(problem(llama, [](ModelConfig& m) { m.rotary_percent = 0.5; }),
            other + "model.rotary_percent: found 0.5, expected 1");
  EXPECT_EQ(problem(llama, [](ModelConfig& m) { m.hidden_size = 36; }),
            other + "model.hidden_size: found 36, expected a multiple of model.num_attention_heads, 8");
  const std::string qwen3 = dir / "hf" + ": Hugging Face's Qwen3ForCausalLM cannot hold this model: ";
  EXPECT_EQ(problem(llama, [](ModelConfig& m) { m.qk_layernorm = m.add_bias_linear = true; }),
            qwen3 + "model.add_bias_linear: found true, expected false");
  EXPECT_EQ(problem(llama, [](ModelConfig& m) { m.qk_layernorm = m.add_qkv_bias = true; }),
            qwen3 + "model.add_qkv_bias: found true, expected false");
  ModelConfig narrow = llama;  // too narrow for its heads
  narrow.hidden_size = 36;
  narrow.qk_layernorm = true;
  EXPECT_NE(to_hf_config(narrow, "", {}).find("\"Qwen3ForCausalLM\""), std::string::npos);
  EXPECT_EQ(problem(gpt, [](ModelConfig& m) { m.qk_layernorm = true; }),
            gpt2 + "model.qk_layernorm: found true, expected false");
  EXPECT_TRUE(list_directory(dir / "").empty());
}

// Each model.* key is set in turn: the format carries it, or it affects only training, or the export is refused.
TEST(Convert, NoKeyOfTheModelIsPassedOverByAnExport) {
  const TempDir dir;
  const std::set<std::string_view> of_training{"make_vocab_size_divisible_by",
                                               "scale_output_layer_init",
                                               "recompute_granularity",
                                               "recompute_modules",
                                               "recompute_method",
                                               "recompute_num_layers",
                                               "cross_entropy_chunk_rows"};
  ModelConfig gpt = test::tiny_model(false).model, llama = test::tiny_model(true).model;
  for (ModelConfig* model : {&gpt, &llama}) model->ffn_hidden_size = 48, model->vocab_size = 40;
  ModelConfig qwen2 = llama, qwen3 = llama, scaled = llama;
  qwen2.add_qkv_bias = qwen3.qk_layernorm = scaled.use_rope_scaling = true;
  scaled.rope_scaling_high_freq_factor = 16;
  for (const ModelConfig& plain : {gpt, llama, scaled, qwen2, qwen3})
    for (const Field& field : fields()) {
      if (field.section() != "model") continue;
      Config changed;
      changed.model = plain;
      const std::string before = format_field(field, changed);
      std::vector<std::string> values{"true", "false", "5", "0.75"};
      values.insert(values.end(), field.words.begin(), field.words.end());
      for (const std::string& value : values) {
        if (format_field(field, changed) != before) break;
        parse_field(field, {.text = value}, changed);
      }
      const std::string set = format_field(field, changed);
      ASSERT_NE(set, before) << field.name;
      const bool no_effect = field.key().starts_with("rope_scaling_") && !plain.use_rope_scaling;  // no run can set it
      if (of_training.contains(field.key()) || (no_effect && plain.swiglu)) continue;
      if (field.key() == "hidden_dropout" && plain.swiglu) continue;  // training only, but GPT-2's format includes it
      EXPECT_NO_THROW(to_hf_config(plain, "", {}));
      std::string written;
      try {
        written = to_hf_config(changed.model, "", {});
      } catch (const ConfigError& error) {
        EXPECT_NE(std::string(error.what()).find(" cannot hold this model: model."), std::string::npos);
        continue;
      }
      write_text(dir / "config.json", written);
      std::vector<std::string> unread;
      std::string zero_biases;
      Config read;
      read.model = with_sizes(read_hf_config(dir / "config.json", unread, zero_biases)).model;
      changed.model = with_sizes(changed.model).model;
      EXPECT_EQ(format_field(field, read), format_field(field, changed)) << field.name << " " << set;
    }
}

TEST(Convert, ReadsShardsNamesWithoutPrefixMasksAndATiedHead) {
  // given: the model in the format of older programs, in two files
  const TempDir dir;
  Edited model;
  model.tensors.push_back({"lm_head.weight", {40, 8}, model.find("transformer.wte.weight").bytes});
  model.tensors.push_back({"transformer.h.0.attn.bias", {1, 1, 12, 12}, std::string(4 * 144, '\0')});
  model.tensors.push_back({"transformer.h.1.attn.masked_bias", {}, std::string(4, '\0')});
  nlohmann::json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", nlohmann::json::object()}};
  std::vector<Edited::One> files[2];
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    Edited::One& tensor = model.tensors[i];
    if (tensor.name.starts_with("transformer.")) tensor.name.erase(0, 12);
    index["weight_map"][tensor.name] = fmt::format("model-0000{}-of-00002.safetensors", 1 + i % 2);
    files[i % 2].push_back(tensor);
  }
  for (int i = 0; i < 2; ++i)
    Edited::write_file(dir / fmt::format("model-0000{}-of-00002.safetensors", 1 + i), files[i]);
  write_text(dir / "config.json", model.config.dump());
  const auto write_index = [&] { write_text(dir / "model.safetensors.index.json", index.dump()); };
  write_index();
  // then: it is the same model
  EXPECT_EQ(weights_of(dir / ""), weights_of(kHf));

  // and an index that points outside the folder or lists a missing tensor is refused
  for (const char* name : {"../secret", "/etc/passwd", "a/b", ".hidden", "", "..\\x"}) {
    index["weight_map"]["wte.weight"] = name;
    write_index();
    EXPECT_NE(error_of(dir / "").find("expected the name of a file in the model's folder"), std::string::npos) << name;
  }
  index["weight_map"]["wte.weight"] = "model-00001-of-00002.safetensors";
  index["weight_map"]["more"] = "model-00001-of-00002.safetensors";
  write_index();
  EXPECT_NE(error_of(dir / "").find("has no tensor 'more'"), std::string::npos) << error_of(dir / "");
}

TEST(Convert, RefusesWhatIsNoSuchModelAndNamesTheTensor) {
  struct Case {
    std::function<void(Edited&)> edit;
    const char* message;
  };
  const std::string qkv = "transformer.h.1.attn.c_attn.weight";
  const Case cases[] = {
      {[&](Edited& m) {
         m.find(qkv).shape = {24, 8};
       },
       "tensor transformer.h.1.attn.c_attn.weight: found the shape [24, 8], expected [8, 24] (a Conv1D: [in, out])"},
      {[&](Edited& m) { m.find(qkv).name = "transformer.h.1.attn.c_attn.wieght"; },
       "tensor h.1.attn.c_attn.weight: not found, expected the shape [8, 24]"},
      {[](Edited& m) {
         m.tensors.push_back({"score.weight", {1}, "1234"});
       },
       "score.weight: not a tensor of the model of 2 layers that config.json describes"},
      {[](Edited& m) {
         m.tensors.push_back({"wte.weight", {1}, "1234"});
       },
       "appears twice in the model"},
      {[](Edited& m) {
         m.tensors.push_back({"lm_head.weight", {40, 8}, std::string(1280, '\1')});
       },
       "lm_head.weight differs from wte.weight"},
      {[](Edited& m) {
         m.tensors.push_back({"lm_head.weight", {40, 8}, std::string(1280, '\1')});
         m.tensors.back().dtype = "I32";
       },
       "tensor lm_head.weight: found I32, expected F32, F16 or BF16"},
      {[&](Edited& m) { m.find(qkv).dtype = "I32"; },
       "tensor transformer.h.1.attn.c_attn.weight: found I32, expected F32, F16 or BF16"},
      {[](Edited& m) { m.config["tie_word_embeddings"] = false; }, "tensor lm_head.weight: not found"},
      {[](Edited& m) { m.config["model_type"] = "llama"; }, "num_hidden_layers: found nothing"},
      {[](Edited& m) { m.config["activation_function"] = "relu"; }, "activation_function: found \"relu\""},
      {[](Edited& m) { m.config["scale_attn_by_inverse_layer_idx"] = true; }, "scale_attn_by_inverse_layer_idx"},
      {[](Edited& m) { m.config["n_layer"] = 1000000000000; }, "model.num_layers"},
      {[](Edited& m) { m.config["n_layer"] = 3; }, "tensor h.2.ln_1.weight: not found"},
      {[](Edited& m) { m.config["n_head"] = 3; }, "3 heads do not divide"},
  };
  for (const Case& c : cases) {
    const TempDir dir;
    Edited model;
    c.edit(model);
    model.write(dir / "hf");
    EXPECT_NE(error_of(dir / "hf").find(c.message), std::string::npos) << c.message << "\n" << error_of(dir / "hf");
  }
}

// In every format and every type: nothing is written, and a checkpoint with non-finite numbers is not loaded.
TEST(Convert, FindsNumbersThatAreNotFinite) {
  struct Case {
    const char* dtype;
    std::string bits;
    const char* number;
  };
  const Case cases[] = {{"F32", std::string("\0\0\xc0\x7f", 4), "nan"},
                        {"F32", std::string("\0\0\x80\xff", 4), "-inf"},
                        {"BF16", "\x81\x7f", "nan"},
                        {"F16", std::string("\0\x7c", 2), "inf"}};
  const std::string name = "transformer.h.1.mlp.c_proj.bias";
  for (const auto& [dtype, bits, number] : cases) {
    const TempDir dir;
    Edited model;
    Edited::One& tensor = model.find(name);
    tensor.dtype = dtype;
    tensor.bytes = std::string(8 * bits.size(), '\0').replace(5 * bits.size(), bits.size(), bits);
    model.write(dir / "hf");
    const auto weights = open_gpt_weights(dir / "hf");
    const std::string found = fmt::format("hf/model.safetensors: tensor {}: element 5 of 8 is {}", name, number);
    for (const auto& write : std::initializer_list<std::function<void()>>{
             [&] { write_checkpoint(*weights, dir / "made"); }, [&] { write_hf(*weights, dir / "made", {}); }}) {
      EXPECT_NE(message_of<DataError>(write).find(found), std::string::npos) << message_of<DataError>(write);
      EXPECT_EQ(list_directory(dir / ""), std::vector<std::string>{"hf"});
    }
  }
  const TempDir dir;
  test::write_llmc(*open_gpt_weights(kHf), dir / "model.bin");
  std::string data = read_text(dir / "model.bin");
  write_text(dir / "model.bin", data.replace(1024 + 4 * 3, 4, std::string("\0\0\x80\x7f", 4)));
  const std::string of_llmc =
      message_of<DataError>([&] { write_checkpoint(*open_gpt_weights(dir / "model.bin"), dir / "made"); });
  EXPECT_NE(of_llmc.find("model.bin: tensor embedding.word_embeddings.weight: element 3 of "), std::string::npos)
      << of_llmc;

  // A checkpoint in our format that another program wrote; inspect still shows it.
  class Infinite : public GptWeights {
   public:
    Infinite() : GptWeights("infinite") { set_model(open_gpt_weights(kHf)->config()); }
    std::vector<float> read(const ModelTensor& tensor) override {
      return std::vector<float>(static_cast<size_t>(tensor.param.global_shape.numel()),
                                std::numeric_limits<float>::infinity());
    }
  } infinite;
  write_checkpoint(infinite, dir / "c");
  const auto ours = open_gpt_weights(dir / "c");
  const ModelTensor& first = ours->tensors()[0];
  EXPECT_NE(message_of<DataError>([&] { ours->read(first); }).find("c: tensor " + first.param.name + ": element 0 of "),
            std::string::npos);
  EXPECT_EQ(read_tensor(*ours->checkpoint(), first.param.name, first.param.global_shape, Weights::any)[0],
            std::numeric_limits<float>::infinity());
}

TEST(Convert, RefusesLlmcFilesThatDoNotFitTheirHeader) {
  const TempDir dir;
  test::write_llmc(*open_gpt_weights(kHf), dir / "model.bin");
  const std::string good = read_text(dir / "model.bin");
  const auto error_with = [&](size_t field, int32_t value, size_t bytes) {
    std::string bad = good;
    std::memcpy(bad.data() + 4 * field, &value, 4);
    bad.resize(bytes);
    write_text(dir / "model.bin", bad);
    return error_of(dir / "model.bin");
  };
  EXPECT_NE(error_with(1, 4, good.size()).find("found version 4"), std::string::npos);
  EXPECT_NE(error_with(4, 3, good.size()).find("has "), std::string::npos);      // one layer too many
  EXPECT_NE(error_with(4, 2, good.size() - 1).find("has "), std::string::npos);  // one byte too few
  EXPECT_NE(error_with(4, 2, good.size() + 1).find("has "), std::string::npos);  // or too many
  EXPECT_NE(error_with(4, -1, good.size()).find("num_layers"), std::string::npos);
  EXPECT_NE(error_with(7, 1, good.size()).find("found 1 rows"), std::string::npos);
  EXPECT_NE(error_with(6, INT32_MAX, good.size()).find("hidden_size"), std::string::npos);
  EXPECT_NE(error_with(1, 3, 100).find("expected a checkpoint"), std::string::npos);  // shorter than a header
}

TEST(Convert, NothingThatIsThereIsOverwritten) {
  const TempDir dir;
  const auto weights = open_gpt_weights(kHf);
  write_text(dir / "there", "mine");
  fs::create_directories(dir / "folder/with");
  for (const char* name : {"there", "folder"}) {
    EXPECT_THROW(write_checkpoint(*weights, dir / name), ConfigError);
    EXPECT_THROW(write_hf(*weights, dir / name, {.dtype = DType::f32}), ConfigError);
  }
  EXPECT_EQ(read_text(dir / "there"), "mine");
}

TEST(Convert, LeavesNothingHalfDone) {
  // given: a model whose last tensor cannot be read to its end, under a name that is not UTF-8
  const TempDir dir;
  const std::string source = dir / "hf\xff";
  fs::copy(kHf, source);
  const auto torn = open_gpt_weights(source);
  fs::resize_file(source + "/model.safetensors", fs::file_size(source + "/model.safetensors") - 4);
  EXPECT_THROW(write_checkpoint(*torn, dir / "out"), DataError);
  EXPECT_THROW(write_hf(*torn, dir / "out", {}), DataError);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / ""), {}), 1) << "the source alone";
  // and: a trailing slash in a name is ignored
  fs::remove(source + "/model.safetensors");
  fs::copy(kHf + "/model.safetensors", source + "/model.safetensors");
  write_checkpoint(*open_gpt_weights(source), dir / "out/");
  EXPECT_EQ(weights_of(dir / "out"), weights_of(kHf));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / ""), {}), 2);
}

TEST(Convert, TwoOfOneDestinationDoNotMix) {
  // given: one writer that finishes while another is still writing, and a folder with the name of a temporary one
  const TempDir dir;
  const std::string out = dir / "out";
  fs::create_directories(out + ".tmp-convert");
  const auto write = [](const std::string& text, auto between) {
    return [=](const Disk& disk, const std::string& folder) {
      disk.write_file(folder + "/" + text, text);
      between();
    };
  };
  // then: the folder contains only the first writer's files, the other writer fails, and nothing is left over
  EXPECT_EQ(message_of<IoError>(
                [&] { write_folder(out, write("second", [&] { write_folder(out, write("first", [] {})); })); }),
            out + ": another process created it meanwhile; it is left untouched");
  EXPECT_EQ(std::distance(fs::directory_iterator(out), {}), 1);
  EXPECT_EQ(read_text(out + "/first"), "first");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / ""), {}), 2);
}

TEST(Convert, NamesWhatCannotBeLookedAt) {
  const TempDir dir;
  fs::create_symlink("loop", dir / "loop");
  EXPECT_EQ(message_of<IoError>([&] { open_gpt_weights(dir / "loop"); }),
            (dir / "loop") + ": cannot be found: Too many levels of symbolic links");
  EXPECT_EQ(message_of<ConfigError>([&] { open_gpt_weights(dir / "none"); }),
            (dir / "none") + ": there is no such file or directory");
  fs::create_directories(dir / "step/manifest.json");
  EXPECT_EQ(error_of(dir / "step"), (dir / "step/manifest.json") + ": not a regular file");
}

TEST(Convert, HeadsAreSplitAndJoined) {
  // Two heads of two rows each, one column: q0 q0 k0 k0 v0 v0 q1 q1 k1 k1 v1 v1.
  const std::vector<float> joined{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<float> split{1, 2, 7, 8, 3, 4, 9, 10, 5, 6, 11, 12};
  const AttentionSpec two{.heads = 2, .kv_heads = 2, .head_width = 2};
  EXPECT_EQ(reorder_heads(joined, two, HeadOrder::by_part), split);
  EXPECT_EQ(reorder_heads(split, two, HeadOrder::by_group), joined);
  // Two groups of two query heads: q0 q1 k0 v0 q2 q3 k1 v1.
  const std::vector<float> groups{1, 2, 3, 4, 5, 6, 7, 8}, parts{1, 2, 5, 6, 3, 7, 4, 8};
  const AttentionSpec shared{.heads = 4, .kv_heads = 2, .head_width = 1};
  EXPECT_EQ(reorder_heads(groups, shared, HeadOrder::by_part), parts);
  EXPECT_EQ(reorder_heads(parts, shared, HeadOrder::by_group), groups);
}

}  // namespace
}  // namespace trivet
