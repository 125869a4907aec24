// A model has one description. The parameters that its layers declare, accounting, checkpoints, the names in other
// formats and a step's FLOPs all agree with it.
#include "engine/model/spec.h"

#include <atomic>
#include <gtest/gtest.h>
#include <map>
#include <mutex>
#include <set>

#include "engine/checkpoint/state_tensors.h"
#include "engine/config/validate.h"
#include "engine/metrics/accounting.h"
#include "engine/model/modules.h"
#include "kernels/ops.h"
#include "tests/support/message_of.h"
#include "tests/support/training.h"
#include "tools/convert/hf_config.h"

namespace trivet::test {
namespace {

// Models that differ from one another in every size.
std::vector<ModelConfig> models() {
  const ModelConfig tiny = tiny_config().model;
  ModelConfig untied = tiny, narrow = tiny, long_one = tiny;
  untied.untie_embeddings_and_output_weights = true;
  narrow.num_layers = 2;
  narrow.hidden_size = 16;
  narrow.ffn_hidden_size = 24;
  narrow.num_attention_heads = 2;
  narrow.vocab_size = 63;
  long_one.seq_length = 24;
  long_one.num_attention_heads = 8;
  long_one.ffn_hidden_size = std::nullopt;
  const ModelConfig llama = tiny_model(true).model;
  ModelConfig biased = llama, gated = tiny;
  biased.add_bias_linear = true;
  biased.position_embedding_type = Positions::learned;
  gated.swiglu = true;
  gated.normalization = Norm::rmsnorm;
  gated.add_bias_linear = false;
  gated.add_qkv_bias = true;
  ModelConfig qwen3 = llama, centred = llama;
  qwen3.qk_layernorm = centred.qk_layernorm = true;
  centred.normalization = Norm::layernorm;
  return {tiny, untied, narrow, long_one, llama, biased, gated, qwen3, centred};
}

// The parameter count of our layers, written out.
int64_t by_hand(const ModelSpec& m) {
  const int64_t h = m.hidden, fc1 = (m.activation == Activation::swiglu ? 2 : 1) * m.ffn;
  const int64_t width = m.attention.heads * m.attention.head_width;
  const int64_t qkv = width + 2 * m.attention.kv_heads * m.attention.head_width;
  const int64_t weights = h * qkv + width * h + h * fc1 + m.ffn * h;
  const int64_t biases = (m.qkv_bias ? qkv : 0) + (m.biases ? h + fc1 + h : 0);
  const int64_t vectors = m.norm == Norm::layernorm ? 2 : 1, norm = vectors * h;
  const int64_t of_heads = m.qk_norm ? 2 * vectors * m.attention.head_width : 0;
  return m.vocab * h * (m.tied_embeddings ? 1 : 2) + (m.positions == Positions::learned ? m.seq * h : 0) +
         m.num_layers * (weights + biases + of_heads + 2 * norm) + norm;
}

using Elements = std::map<std::string, int64_t>;  // by the parameter's name

Elements declared_by(const ModelSpec& spec) {
  Elements elements;
  for (const ModelTensor& tensor : model_tensors(spec)) elements[tensor.param.name] = tensor.param.global_shape.numel();
  return elements;
}

// The elements that all ranks together save in a checkpoint.
Elements saved_by(Config config, int ranks) {
  Elements elements;
  std::mutex mutex;
  with_trainers(config, ranks, [&](Trainer& trainer) {
    const std::lock_guard lock(mutex);
    const RankState& state = trainer.state();
    for (const StateTensor& tensor : saved_tensors(state.flat, *state.optimizer))
      if (!tensor.name.starts_with("optimizer.")) elements[tensor.name] += tensor.slice.count;
  });
  return elements;
}

TEST(ModelSpec, CountsDeclarationsCheckpointsAndForeignNamesAgree) {
  for (const ModelConfig& model : models()) {
    Config config = tiny_config();
    config.model = model;
    const ModelSpec spec = model_spec_of(model);
    SCOPED_TRACE("hidden " + std::to_string(spec.hidden) + ", heads " + std::to_string(spec.attention.heads));

    // then: accounting counts what the layers declare, and the formula agrees
    const Elements declared = declared_by(spec);
    int64_t sum = 0;
    for (const auto& [name, elements] : declared) sum += elements;
    EXPECT_EQ(sum, by_hand(spec));
    EXPECT_EQ(count_parameters(spec).total(), sum);

    // then: checkpoints hold each of the model's elements once, however the model is sharded
    EXPECT_EQ(saved_by(config, 1), declared);
    config.parallel.sequence_parallel = true;
    EXPECT_EQ(saved_by(cut(config, {.t = 2, .p = 2, .d = 2, .strategy = "optim"}), 8), declared);

    // then: Hugging Face's format has a distinct name for each part
    Elements foreign;
    std::set<std::string> hf_names;
    size_t parts = 0;
    for (const ModelTensor& tensor : model_tensors(spec))
      for (const HfTensor& part : hf_tensors(spec, tensor)) {
        int64_t elements = 1;
        for (const int64_t n : part.shape) elements *= n;
        foreign[tensor.param.name] += elements;
        hf_names.insert(part.name);
        ++parts;
      }
    EXPECT_EQ(foreign, declared);
    EXPECT_EQ(hf_names.size(), parts);
  }
}

TEST(ModelSpec, NamesAreThoseOfTheFormats) {
  // given
  ModelSpec spec = model_spec_of(tiny_config().model);
  spec.num_layers = 12;
  spec.tied_embeddings = false;

  // when: the tensors outside of blocks, and those of one block
  std::vector<std::pair<std::string, std::string>> names;
  for (const ModelTensor& tensor : model_tensors(spec))
    if (tensor.param.name.find(".layers.") == std::string::npos || tensor.layer == 11)
      names.emplace_back(tensor.param.name, hf_tensors(spec, tensor).at(0).name);

  // then: Megatron's and Hugging Face's, in the order of an llm.c file
  EXPECT_EQ(names, (std::vector<std::pair<std::string, std::string>>{
                       {"embedding.word_embeddings.weight", "wte.weight"},
                       {"embedding.position_embeddings.weight", "wpe.weight"},
                       {"decoder.layers.11.input_layernorm.weight", "h.11.ln_1.weight"},
                       {"decoder.layers.11.input_layernorm.bias", "h.11.ln_1.bias"},
                       {"decoder.layers.11.self_attention.linear_qkv.weight", "h.11.attn.c_attn.weight"},
                       {"decoder.layers.11.self_attention.linear_qkv.bias", "h.11.attn.c_attn.bias"},
                       {"decoder.layers.11.self_attention.linear_proj.weight", "h.11.attn.c_proj.weight"},
                       {"decoder.layers.11.self_attention.linear_proj.bias", "h.11.attn.c_proj.bias"},
                       {"decoder.layers.11.pre_mlp_layernorm.weight", "h.11.ln_2.weight"},
                       {"decoder.layers.11.pre_mlp_layernorm.bias", "h.11.ln_2.bias"},
                       {"decoder.layers.11.mlp.linear_fc1.weight", "h.11.mlp.c_fc.weight"},
                       {"decoder.layers.11.mlp.linear_fc1.bias", "h.11.mlp.c_fc.bias"},
                       {"decoder.layers.11.mlp.linear_fc2.weight", "h.11.mlp.c_proj.weight"},
                       {"decoder.layers.11.mlp.linear_fc2.bias", "h.11.mlp.c_proj.bias"},
                       {"decoder.final_layernorm.weight", "ln_f.weight"},
                       {"decoder.final_layernorm.bias", "ln_f.bias"},
                       {"output_layer.weight", "lm_head.weight"}}));
}

// ---- FLOPs

struct Counted {
  std::atomic<int64_t> gemms = 0, attention = 0;
};

// Counts the FLOPs of the ops that it forwards: 2 m n k per GEMM; for attention its two GEMMs with s x s scores, once
// forward and twice backward, as model FLOPs do.
class CountingOps : public Ops {
 public:
  CountingOps(std::unique_ptr<Ops> ops, Counted& counted) : ops_(std::move(ops)), counted_(counted) {}

  void run(const AnyOp& op, Stream& stream) override {
    if (const auto* gemm = std::get_if<op::Matmul>(&op)) {
      const Tensor& a = gemm->a;
      counted_.gemms += 2 * gemm->c.numel() * (gemm->transpose_a ? a.numel() / a.shape[-1] : a.shape[-1]);
    }
    if (const auto* forward = std::get_if<op::AttentionForward>(&op)) counted_.attention += flops_of(forward->out);
    if (const auto* backward = std::get_if<op::AttentionBackward>(&op))
      counted_.attention += 2 * flops_of(backward->out);
    ops_->run(op, stream);
  }

 private:
  static int64_t flops_of(const Tensor& out) { return 2 * 2 * out.numel() * out.shape[0]; }  // [s, b, heads * d]

  std::unique_ptr<Ops> ops_;
  Counted& counted_;
};

TEST(ModelSpec, FlopsAreWhatTheGemmsOfAStepTake) {
  for (const ModelConfig& model : models())
    for (const Cut& layout : {Cut{}, Cut{.t = 2, .p = 2, .d = 2, .sequence_parallel = true}}) {
      // given
      Config config = tiny_config();
      config.model = model;
      config = cut(config, layout);
      const Resolved run = resolved(config, layout.ranks());
      Counted counted;
      const MakeBackend counting = [&](const Config& of, Communicator& world, int threads) {
        Backend backend = make_backend(of, world, threads);
        backend.ops = std::make_unique<CountingOps>(std::move(backend.ops), counted);
        return backend;
      };

      // when: all ranks run a step
      with_trainers(config, layout.ranks(), [](Trainer& trainer) { trainer.step(); }, {.make_backend = counting});

      // then: it executed the FLOPs that accounting gives for the padded vocabulary
      const ModelSpec spec = model_spec_of(run.config.model).with_vocab(run.layout.padded_vocab);
      const TokenFlops token = flops_per_token(spec, FlopsConvention::full);
      const auto tokens = static_cast<double>(*run.config.batch.global_batch_size * spec.seq);
      EXPECT_EQ(static_cast<double>(counted.gemms), (token.layers + token.logits) * tokens);
      EXPECT_EQ(static_cast<double>(counted.attention), token.attention * tokens);
    }
}

// ---- what cannot run

TEST(ModelSpec, SizesThatDoNotFitAreRefusedWithTheReason) {
  const ModelSpec llama = model_spec_of(tiny_model(true).model);
  EXPECT_NO_THROW(expect_runs(llama));
  const auto refused = [&](const auto& change) {
    ModelSpec spec = llama;
    change(spec);
    return message_of<ConfigError>([&] { model_tensors(spec); });
  };
  const std::string begin = "this model cannot run: ";
  EXPECT_EQ(refused([](ModelSpec& m) { m.attention.kv_heads = 3; }),
            begin + "8 query heads cannot share 3 heads of keys and values evenly");
  EXPECT_EQ(refused([](ModelSpec& m) { m.rotary.width = 7; }),
            begin + "found 7 rotary columns in heads of 8, expected an even number of them");
  EXPECT_EQ(refused([](ModelSpec& m) { m.rotary.width = 10; }),
            begin + "found 10 rotary columns in heads of 8, expected an even number of them");
}

TEST(ModelSpec, WhatTrainingDropsIsNoOtherModel) {
  const ModelSpec gpt = model_spec_of(tiny_config().model);
  ModelSpec other = gpt;
  other.training = {.hidden_dropout = 0.1f, .init_std = 1, .scale_output_layer_init = false};
  EXPECT_TRUE(gpt.same_model(other));
  for (const auto& change : std::vector<std::function<void(ModelSpec&)>>{
           [](ModelSpec& m) { m.norm_epsilon = 1e-6; }, [](ModelSpec& m) { m.norm = Norm::rmsnorm; },
           [](ModelSpec& m) { m.positions = Positions::rope; }, [](ModelSpec& m) { m.rotary.base = 5e5; },
           [](ModelSpec& m) { m.rotary.factor = 8; }, [](ModelSpec& m) { m.activation = Activation::swiglu; },
           [](ModelSpec& m) { m.biases = false; }, [](ModelSpec& m) { m.qkv_bias = false; },
           [](ModelSpec& m) { m.qk_norm = true; }, [](ModelSpec& m) { m.attention.kv_heads = 2; },
           [](ModelSpec& m) { m.attention.head_width = 16; }, [](ModelSpec& m) { m.tied_embeddings = false; },
           [](ModelSpec& m) { m.attention.heads = 2; }, [](ModelSpec& m) { m.vocab = 62; }}) {
    other = gpt;
    change(other);
    EXPECT_FALSE(gpt.same_model(other));
  }
}

}  // namespace
}  // namespace trivet::test
