// Weights between formats: a GPT-2 that Hugging Face's transformers has saved (tests/golden/make_hf_golden.py) gives
// its logits here, and every way around gives back its bits.
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "engine/checkpoint/gpt_weights.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/train/inference.h"
#include "parallel/comm/world.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"
#include "tests/support/where.h"

namespace trivet {
namespace {

namespace fs = std::filesystem;

const std::string kHf = source_path("tests/golden/hf_gpt2");

// All weights, as Trivet has them.
std::vector<std::vector<float>> weights_of(const std::string& path) {
  const auto weights = open_gpt_weights(path);
  std::vector<std::vector<float>> all;
  for (const GptTensor& tensor : weights->tensors()) all.push_back(weights->read(tensor));
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

// Every tensor of a safetensors file, fp32.
std::map<std::string, std::vector<float>> tensors_of(const std::string& path) {
  const InputFile file(path);
  const SafeTensors content = read_safetensors(file);
  std::map<std::string, std::vector<float>> tensors;
  for (const SafeTensor& tensor : content.tensors) {
    std::vector<float>& values = tensors[tensor.name];
    values.resize(static_cast<size_t>((tensor.end - tensor.begin) / 4));
    read_as_float(file, content.data_offset + tensor.begin, tensor.dtype, values);
  }
  return tensors;
}

// The golden model with other names, shapes or values.
class Edited {
 public:
  Edited() {
    const InputFile file(kHf + "/model.safetensors");
    const SafeTensors content = read_safetensors(file);
    for (const SafeTensor& tensor : content.tensors) {
      std::string bytes(static_cast<size_t>(tensor.end - tensor.begin), '\0');
      file.read_at(content.data_offset + tensor.begin, std::as_writable_bytes(std::span(bytes)));
      tensors.push_back({tensor.name, tensor.shape, bytes});
    }
    config = parse_json(read_text(kHf + "/config.json"));
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

TEST(Convert, GivesTheLogitsOfHuggingFace) {
  // given: a checkpoint made of a model that transformers has saved
  const TempDir dir;
  write_checkpoint(*open_gpt_weights(kHf), dir / "step-00000000");
  const auto golden = parse_json(read_text(kHf + "/logits.json"));
  const std::vector<int32_t> tokens = golden["tokens"];

  for (const auto& [tensor, pipeline] : {std::pair{1, 1}, {2, 2}}) {
    run_thread_ranks(tensor * pipeline, [&](Communicator& world) {
      // when: it runs on one rank, and cut both ways
      const OpenCheckpoint checkpoint = open_checkpoint(dir / "step-00000000");
      const std::vector<std::string> sets{"device.threads_per_rank=1"};
      LoadedConfig loaded = inference_config(checkpoint, tensor, pipeline, sets);
      const Layout layout = resolve(loaded, {.world_size = world.size()});
      const auto model = open_model(loaded.config, layout, world, checkpoint, static_cast<int64_t>(tokens.size()));

      // then: after each token it expects what transformers does
      for (size_t i = 0; i < tokens.size(); ++i) {
        const std::vector<float> logits = model->next_token_logits(std::span(tokens).first(i + 1));
        const std::vector<double> expected = golden["logits"][i];
        ASSERT_EQ(logits.size(), expected.size());
        double scale = 0;
        for (const double x : expected) scale = std::max(scale, std::abs(x));
        for (size_t v = 0; v < logits.size(); ++v)
          EXPECT_NEAR(logits[v], expected[v], 1e-5 * scale) << "token " << i << ", logit " << v;
      }
    });
  }
}

TEST(Convert, EveryWayAroundGivesTheSameBits) {
  const TempDir dir;
  const auto original = weights_of(kHf);
  // when: Hugging Face -> Trivet -> Hugging Face
  write_checkpoint(*open_gpt_weights(kHf), dir / "trivet");
  write_hf_gpt2(*open_gpt_weights(dir / "trivet"), dir / "hf", DType::f32);
  // then: what transformers wrote is written, tensor by tensor
  EXPECT_EQ(tensors_of(dir / "hf/model.safetensors"), tensors_of(kHf + "/model.safetensors"));
  EXPECT_EQ(weights_of(dir / "hf"), original);

  // when: Trivet -> llm.c -> Trivet; then: the same weights, the vocabulary padded as llm.c has it
  write_llmc(*open_gpt_weights(dir / "trivet"), dir / "model", DType::f32);  // by any name
  EXPECT_EQ(fs::file_size(dir / "model"), 1024 + 4 * (2176 + (128 - 40) * 8));
  write_checkpoint(*open_gpt_weights(dir / "model"), dir / "back");
  EXPECT_EQ(weights_of(dir / "back"), original);
  verify_checkpoint(open_checkpoint(dir / "back"), [](int64_t) {});

  // when: in bf16; then: what is rounded once is not rounded again
  write_hf_gpt2(*open_gpt_weights(dir / "trivet"), dir / "hf16", DType::bf16);
  write_llmc(*open_gpt_weights(dir / "hf16"), dir / "model16.bin", DType::bf16);
  EXPECT_EQ(weights_of(dir / "hf16"), weights_of(dir / "model16.bin"));
  EXPECT_EQ(static_cast<float>(bf16(original[0][0])), weights_of(dir / "hf16")[0][0]);
}

TEST(Convert, AnUntiedHeadIsATensorOfItsOwn) {
  // given: the model with another head
  const TempDir dir;
  Edited model;
  std::string head = model.find("transformer.wte.weight").bytes;
  std::reverse(head.begin(), head.end());
  for (size_t i = 3; i < head.size(); i += 4) head[i] = '\x3e';  // small numbers
  model.tensors.push_back({"lm_head.weight", {40, 8}, head});
  model.config["tie_word_embeddings"] = false;
  model.write(dir / "hf");
  // then: it comes back, and llm.c, which has no place for it, is refused it
  write_checkpoint(*open_gpt_weights(dir / "hf"), dir / "trivet");
  write_hf_gpt2(*open_gpt_weights(dir / "trivet"), dir / "again", DType::f32);
  EXPECT_EQ(tensors_of(dir / "again/model.safetensors"), tensors_of(dir / "hf/model.safetensors"));
  EXPECT_THROW(write_llmc(*open_gpt_weights(dir / "trivet"), dir / "model.bin", DType::f32), ConfigError);
}

TEST(Convert, OnlyAGpt2IsWrittenAsOne) {
  const TempDir dir;
  struct Llama : GptWeights {
    Llama() : GptWeights("a llama") {
      Config config = test::tiny_model(true);
      set_model(config);
    }
    std::vector<float> read(const GptTensor&) override { return {}; }
  } llama;
  EXPECT_EQ(message_of<ConfigError>([&] { write_hf_gpt2(llama, dir / "hf", DType::f32); }),
            dir / "hf" + ": Hugging Face's GPT-2 cannot hold this model: found RMSNorm, expected a GPT-2");
  EXPECT_EQ(message_of<ConfigError>([&] { write_llmc(llama, dir / "llmc", DType::f32); }),
            dir / "llmc" + ": llm.c's format cannot hold this model: found RMSNorm, expected a GPT-2");
  EXPECT_FALSE(fs::exists(dir / "hf") || fs::exists(dir / "llmc"));
}

TEST(Convert, ReadsShardsNamesWithoutPrefixMasksAndATiedHead) {
  // given: the model as older programs save it, in two files
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

  // and an index that leaves the folder, or promises what is not there, is refused
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
       "score.weight: not a tensor of a GPT-2"},
      {[](Edited& m) {
         m.tensors.push_back({"wte.weight", {1}, "1234"});
       },
       "the model has it twice"},
      {[](Edited& m) {
         m.tensors.push_back({"lm_head.weight", {40, 8}, std::string(1280, '\1')});
       },
       "lm_head.weight differs from wte.weight"},
      {[&](Edited& m) { m.find(qkv).dtype = "I32"; },
       "tensor transformer.h.1.attn.c_attn.weight: found I32, expected F32, F16 or BF16"},
      {[](Edited& m) { m.config["tie_word_embeddings"] = false; }, "tensor lm_head.weight: not found"},
      {[](Edited& m) { m.config["model_type"] = "llama"; }, "model_type: found 'llama', expected 'gpt2'"},
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

TEST(Convert, RefusesLlmcFilesThatDoNotFitTheirHeader) {
  const TempDir dir;
  write_llmc(*open_gpt_weights(kHf), dir / "model.bin", DType::f32);
  const std::string good = read_text(dir / "model.bin");
  const auto error_with = [&](size_t field, int32_t value, size_t bytes) {
    std::string bad = good;
    std::memcpy(bad.data() + 4 * field, &value, 4);
    bad.resize(bytes);
    write_text(dir / "model.bin", bad);
    return error_of(dir / "model.bin");
  };
  EXPECT_NE(error_with(1, 4, good.size()).find("found version 4"), std::string::npos);
  EXPECT_NE(error_with(4, 3, good.size()).find("has "), std::string::npos);      // another layer
  EXPECT_NE(error_with(4, 2, good.size() - 1).find("has "), std::string::npos);  // a byte too few
  EXPECT_NE(error_with(4, 2, good.size() + 1).find("has "), std::string::npos);  // or too many
  EXPECT_NE(error_with(4, -1, good.size()).find("num_layers"), std::string::npos);
  EXPECT_NE(error_with(7, 1, good.size()).find("found 1 rows"), std::string::npos);
  EXPECT_NE(error_with(6, INT32_MAX, good.size()).find("hidden_size"), std::string::npos);
  EXPECT_NE(error_with(1, 3, 100).find("expected a checkpoint"), std::string::npos);  // no header: no such file
}

TEST(Convert, NothingThatIsThereIsOverwritten) {
  const TempDir dir;
  const auto weights = open_gpt_weights(kHf);
  write_text(dir / "there", "mine");
  fs::create_directories(dir / "folder/with");
  EXPECT_THROW(write_llmc(*weights, dir / "there", DType::f32), ConfigError);
  EXPECT_THROW(write_checkpoint(*weights, dir / "folder"), ConfigError);
  EXPECT_THROW(write_hf_gpt2(*weights, dir / "folder", DType::f32), ConfigError);
  EXPECT_EQ(read_text(dir / "there"), "mine");
}

TEST(Convert, LeavesNothingHalfDone) {
  // given: a model whose last tensor cannot be read to its end, under a name that is no UTF-8
  const TempDir dir;
  const std::string source = dir / "hf\xff";
  fs::copy(kHf, source);
  const auto torn = open_gpt_weights(source);
  fs::resize_file(source + "/model.safetensors", fs::file_size(source + "/model.safetensors") - 4);
  EXPECT_THROW(write_checkpoint(*torn, dir / "out"), DataError);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / ""), {}), 1) << "the source alone";
  // and: a name with a slash at its end is the name of the folder
  fs::remove(source + "/model.safetensors");
  fs::copy(kHf + "/model.safetensors", source + "/model.safetensors");
  write_checkpoint(*open_gpt_weights(source), dir / "out/");
  EXPECT_EQ(weights_of(dir / "out"), weights_of(kHf));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / ""), {}), 2);
}

TEST(Convert, NamesWhatCannotBeLookedAt) {
  const TempDir dir;
  fs::create_symlink("loop", dir / "loop");
  EXPECT_EQ(error_of(dir / "loop"), (dir / "loop") + ": cannot be found: Too many levels of symbolic links");
  EXPECT_EQ(message_of<ConfigError>([&] { open_gpt_weights(dir / "none"); }),
            (dir / "none") + ": there is no such file or directory");
  fs::create_directories(dir / "step/manifest.json");
  EXPECT_EQ(error_of(dir / "step"), (dir / "step/manifest.json") + ": not a regular file");
}

TEST(Convert, HeadsAreSplitAndJoined) {
  // Two heads of two rows each: q0 q0 k0 k0 v0 v0 q1 q1 k1 k1 v1 v1, of one column.
  const std::vector<float> joined{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<float> split{1, 2, 7, 8, 3, 4, 9, 10, 5, 6, 11, 12};
  ModelConfig model;
  model.num_attention_heads = 2;
  EXPECT_EQ(reorder_heads(joined, model, HeadOrder::by_part), split);
  EXPECT_EQ(reorder_heads(split, model, HeadOrder::by_head), joined);
}

}  // namespace
}  // namespace trivet
