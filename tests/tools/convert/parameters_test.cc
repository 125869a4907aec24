// Every kind of parameter in every architecture, written out: whether it decays, its learning rate, its initial values,
// how tensor-parallel ranks hold it, and its name in Hugging Face (after hf_prefix). A new kind is an entry in these
// lists.
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <map>
#include <mutex>
#include <set>

#include "engine/model/gpt_stage.h"
#include "engine/model/modules.h"
#include "tests/support/training.h"
#include "tools/convert/hf_config.h"

namespace trivet::test {
namespace {

using Lines = std::set<std::string>;

ModelConfig model_called(const std::string& name, bool tied) {
  Config config = tiny_config();
  if (name == "llama" || name == "qwen2") as_llama(config);
  if (name == "qwen3") as_qwen3(config);
  config.model.add_qkv_bias = name == "qwen2";
  config.model.num_layers = 2;
  config.model.untie_embeddings_and_output_weights = !tied;
  return config.model;
}

std::string text_of(const Init& init, const GptShape& p) {
  if (init.kind == Init::zeros) return "0";
  if (init.kind == Init::ones) return "1";
  const float scaled = p.training.init_std / std::sqrt(2.0f * static_cast<float>(p.num_layers));
  return init.std == p.training.init_std ? "std" : init.std == scaled ? "std/sqrt(2L)" : fmt::format("{}", init.std);
}

// For the second of two tensor-parallel ranks. "whole": on both; "+": its gradient is summed over them, "+sp": only
// under sequence parallelism. A whole parameter is counted, and saved, by the first rank only.
Lines lines_of(const ModelConfig& model, const StageRange& range) {
  GptShape shape{model_spec_of(model)};
  shape.padded_vocab = 64;
  shape.micro_batch = 1;
  shape.t = 2, shape.tensor_rank = 1;
  const MeshShape mesh{{Axis::tp, 2}};
  const MeshPosition at{{Axis::tp, 1}};
  ParamList params(mesh, at), sequence_parallel(mesh, at, true);
  const GptStage stage(params, shape, range, 0), other(sequence_parallel, shape, range, 0);
  std::map<std::string, std::string> foreign;
  for (const ModelTensor& tensor : model_tensors(shape)) {
    std::vector<std::string> names;
    for (const HfTensor& part : hf_tensors(shape, tensor)) names.push_back(part.name);
    foreign[tensor.param.name] = fmt::format("{}", fmt::join(names, " "));
  }
  Lines lines;
  for (size_t i = 0; i < params.all().size(); ++i) {
    const Param& param = params.all()[i];
    const ParamSpec& spec = param.spec;
    const bool cut = param.partition_dim >= 0;
    EXPECT_EQ(param.first_copy, cut) << spec.name;
    EXPECT_EQ(param.partition_offset, cut ? param.shape[param.partition_dim] : 0) << spec.name;
    EXPECT_EQ(spec.padding_from, spec.global_shape[0] == 64 ? 61 : -1) << spec.name;
    const bool vector = spec.global_shape.rank == 1 || spec.name.ends_with(".bias");
    EXPECT_EQ(spec.overwrite_on_first_use, !vector && spec.name.find("position") == spec.name.npos) << spec.name;
    std::string held = cut ? fmt::format("cut {}", param.partition_dim) : "whole";
    if (param.summed_over.has(Axis::tp)) held += "+";
    else if (sequence_parallel.all()[i].summed_over.has(Axis::tp)) held += "+sp";
    if (param.summed_over.has(Axis::pp)) held += ", stages";
    lines.insert(fmt::format("{}: {} {} {}{} = {}", spec.name, held, text_of(spec.init, shape),
                             spec.weight_decay ? "decays" : "-", spec.decoupled_lr ? " own rate" : "",
                             foreign.at(spec.name)));
  }
  return lines;
}
Lines lines_of(const ModelConfig& model) {
  Lines second;  // the second layer's lines, and those outside layers
  for (const std::string& line : lines_of(model, {.num_layers = model.num_layers}))
    if (line.find("layers.0.") == line.npos) second.insert(line);
  return second;
}

std::string difference(const Lines& found, const Lines& expected) {
  std::string text;
  for (const std::string& line : found)
    if (!expected.contains(line)) text += "found    " + line + "\n";
  for (const std::string& line : expected)
    if (!found.contains(line)) text += "expected " + line + "\n";
  return text;
}

Lines gpt() {
  return {
      "embedding.position_embeddings.weight: whole+sp std decays = wpe.weight",
      "decoder.layers.1.input_layernorm.weight: whole+sp 1 - = h.1.ln_1.weight",
      "decoder.layers.1.input_layernorm.bias: whole+sp 0 - = h.1.ln_1.bias",
      "decoder.layers.1.self_attention.linear_qkv.weight: cut 0 std decays = h.1.attn.c_attn.weight",
      "decoder.layers.1.self_attention.linear_qkv.bias: cut 0 0 - = h.1.attn.c_attn.bias",
      "decoder.layers.1.self_attention.linear_proj.weight: cut 1 std/sqrt(2L) decays = h.1.attn.c_proj.weight",
      "decoder.layers.1.self_attention.linear_proj.bias: whole+sp 0 - = h.1.attn.c_proj.bias",
      "decoder.layers.1.pre_mlp_layernorm.weight: whole+sp 1 - = h.1.ln_2.weight",
      "decoder.layers.1.pre_mlp_layernorm.bias: whole+sp 0 - = h.1.ln_2.bias",
      "decoder.layers.1.mlp.linear_fc1.weight: cut 0 std decays = h.1.mlp.c_fc.weight",
      "decoder.layers.1.mlp.linear_fc1.bias: cut 0 0 - = h.1.mlp.c_fc.bias",
      "decoder.layers.1.mlp.linear_fc2.weight: cut 1 std/sqrt(2L) decays = h.1.mlp.c_proj.weight",
      "decoder.layers.1.mlp.linear_fc2.bias: whole+sp 0 - = h.1.mlp.c_proj.bias",
      "decoder.final_layernorm.weight: whole+sp 1 - = ln_f.weight",
      "decoder.final_layernorm.bias: whole+sp 0 - = ln_f.bias",
  };
}

Lines llama() {
  const std::string layer = "layers.1.";
  return {
      "decoder.layers.1.input_layernorm.weight: whole+sp 1 - = " + layer + "input_layernorm.weight",
      "decoder.layers.1.self_attention.linear_qkv.weight: cut 0 std decays = " + layer + "self_attn.q_proj.weight " +
          layer + "self_attn.k_proj.weight " + layer + "self_attn.v_proj.weight",
      "decoder.layers.1.self_attention.linear_proj.weight: cut 1 std/sqrt(2L) decays = " + layer +
          "self_attn.o_proj.weight",
      "decoder.layers.1.pre_mlp_layernorm.weight: whole+sp 1 - = " + layer + "post_attention_layernorm.weight",
      "decoder.layers.1.mlp.linear_fc1.weight: cut 1 std decays = " + layer + "mlp.gate_proj.weight " + layer +
          "mlp.up_proj.weight",
      "decoder.layers.1.mlp.linear_fc2.weight: cut 1 std/sqrt(2L) decays = " + layer + "mlp.down_proj.weight",
      "decoder.final_layernorm.weight: whole+sp 1 - = norm.weight",
  };
}

TEST(ParameterKinds, AreTheseOfEachArchitecture) {
  std::map<std::string, Lines> expected{{"gpt", gpt()}, {"llama", llama()}, {"qwen2", llama()}, {"qwen3", llama()}};
  const std::string attention = "decoder.layers.1.self_attention.", foreign = "layers.1.self_attn.";
  expected["qwen2"].insert(attention + "linear_qkv.bias: cut 0 0 - = " + foreign + "q_proj.bias " + foreign +
                           "k_proj.bias " + foreign + "v_proj.bias");
  for (const std::string which : {"q", "k"})  // each rank normalises its own heads
    expected["qwen3"].insert(attention + which + "_layernorm.weight: whole+ 1 - = " + foreign + which + "_norm.weight");
  const std::string words = "embedding.word_embeddings.weight: cut 0";
  for (auto& [name, lines] : expected)
    for (const bool tied : {true, false}) {
      SCOPED_TRACE(name + (tied ? ", tied" : ", untied"));
      const std::string embedding = name == "gpt" ? "wte.weight" : "embed_tokens.weight";
      Lines wanted = lines;
      wanted.insert(words + (tied ? ", stages" : "") + " std decays own rate = " + embedding);
      if (!tied) wanted.insert("output_layer.weight: cut 0 std decays own rate = lm_head.weight");
      const ModelConfig model = model_called(name, tied);
      EXPECT_EQ(difference(lines_of(model), wanted), "");
      // A separate last stage: a tied head is a copy of the embedding.
      const Lines last = lines_of(model, {.first_layer = 2, .num_layers = 0, .has_embedding = false});
      Lines head;
      for (const std::string& line : wanted)
        if (line.find("final_") != line.npos || line[0] == 'o' || (tied && line.starts_with(words))) head.insert(line);
      EXPECT_EQ(difference(last, head), "");
    }
}

// If the configuration requires it, all norms and biases decay, too.
TEST(ParameterKinds, AllDecayWhereTheConfigurationSaysSo) {
  for (const char* name : {"gpt", "llama", "qwen2", "qwen3"}) {
    Config config = tiny_config();
    config.model = model_called(name, false);
    config.optimizer.decay_norms_and_biases = true;
    with_trainers(config, 1, [&](Trainer& trainer) {
      for (const Param& param : trainer.state().params.all())
        EXPECT_TRUE(param.spec.weight_decay) << name << " " << param.spec.name;
    });
  }
}

// Every randomly drawn weight has the configured standard deviation.
TEST(ParameterKinds, AreDrawnAsWideAsTheConfigurationSays) {
  Config config = tiny_config();
  config.model.init_method_std = 0.5;
  with_trainers(config, 1, [&](Trainer& trainer) {
    for (const Param& param : trainer.state().params.all()) {
      if (param.spec.init.kind != Init::normal) continue;
      const std::vector<std::byte> bytes = bytes_of(trainer, param.weight);
      const auto* values = reinterpret_cast<const float*>(bytes.data());
      double squares = 0;
      for (int64_t i = 0; i < param.weight.numel(); ++i) squares += static_cast<double>(values[i]) * values[i];
      const bool scaled = param.spec.name.find("linear_proj") != std::string::npos ||
                          param.spec.name.find("linear_fc2") != std::string::npos;
      const double expected = 0.5 / (scaled ? std::sqrt(2.0 * 4) : 1);
      EXPECT_NEAR(std::sqrt(squares / static_cast<double>(param.weight.numel())) / expected, 1, 0.2) << param.spec.name;
    }
  });
}

// The first step of Adam moves a weight by its learning rate, whatever its gradient, and by its decay: checked for
// each parameter, sharded over ranks or not.
TEST(ParameterKinds, MoveByTheirOwnRateAndDecay) {
  const double lr = 1e-3, own_lr = 4e-3, decay = 50;
  for (const auto& [name, how] :
       {std::pair("gpt", Cut{}), std::pair("qwen2", Cut{.d = 2, .strategy = "optim"}),
        std::pair("qwen3", Cut{.t = 2, .p = 2, .sequence_parallel = true}), std::pair("llama", Cut{.d = 2})}) {
    for (const bool tied : {true, false}) {
      Config config = tiny_config();
      config.model = model_called(name, tied);
      config.optimizer.lr = lr;
      config.optimizer.decoupled_lr = own_lr;
      config.optimizer.decoupled_min_lr = own_lr / 10;
      config.optimizer.min_lr = lr / 10;
      config.optimizer.lr_warmup_iters = 0;
      config.optimizer.adam_eps = 1e-15;
      // Each parameter's largest change, and the largest effect of decay on it.
      std::map<std::string, double> largest, moved, decayed;
      std::map<std::pair<int, std::string>, std::vector<float>> plain;
      double rate_of_step = 0;
      std::mutex mutex;
      for (const double weight_decay : {0.0, decay}) {
        config.optimizer.weight_decay = weight_decay;
        with_trainers(cut(config, how), how.ranks(), [&](Trainer& trainer) {
          const auto weights = [&](const Param& param) {
            const std::vector<std::byte> bytes = bytes_of(trainer, param.weight);
            std::vector<float> values(bytes.size() / sizeof(float));
            std::memcpy(values.data(), bytes.data(), bytes.size());
            return values;
          };
          std::map<std::string, std::vector<float>> before;
          for (const Param& param : trainer.state().params.all()) before[param.spec.name] = weights(param);
          const double now = trainer.step().learning_rate;
          const std::lock_guard lock(mutex);
          rate_of_step = now;
          for (const Param& param : trainer.state().params.all()) {
            const std::string& key = param.spec.name;
            const std::vector<float> after = weights(param);
            std::vector<float>& reference = plain[{trainer.world().rank(), key}];
            if (weight_decay == 0) reference = after;
            for (size_t i = 0; i < after.size(); ++i) {
              largest[key] = std::max<double>(largest[key], std::abs(before[key][i]));
              if (weight_decay == 0) moved[key] = std::max<double>(moved[key], std::abs(after[i] - before[key][i]));
              decayed[key] = std::max<double>(decayed[key], std::abs(after[i] - reference[i]));
            }
          }
        });
      }
      for (const auto& [key, change] : moved) {
        const bool words = key.starts_with("embedding.word") || key.starts_with("output_layer");
        const double rate = rate_of_step * (words ? own_lr / lr : 1);
        EXPECT_NEAR(change / rate, 1, 2e-3) << name << " " << key;
        const bool decays = key.find("norm") == key.npos && !key.ends_with(".bias");
        EXPECT_NEAR(decayed[key], decays ? rate * decay * largest[key] : 0, 1e-6) << name << " " << key;
      }
    }
  }
}

}  // namespace
}  // namespace trivet::test
