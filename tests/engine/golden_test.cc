// Trivet against PyTorch: losses, gradient norms and gradients of a small GPT, Llama and Qwen3 over ten AdamW steps in
// fp32. The golden numbers are PyTorch's in float64 (tests/golden/make_golden.py); both sides make the weights and
// tokens from the same pure functions.
#include <gtest/gtest.h>

#include "base/json.h"
#include "engine/model/init.h"
#include "engine/train/rank_state.h"
#include "parallel/comm/world.h"
#include "tests/support/temp_dir.h"
#include "tests/support/where.h"

namespace trivet {
namespace {

constexpr int64_t kVocab = 50, kSeq = 12, kBatch = 2;

Config golden_config(const std::string& name) {
  Config config;
  config.model = {.num_layers = 2,
                  .hidden_size = 16,
                  .ffn_hidden_size = 64,
                  .num_attention_heads = 2,
                  .seq_length = kSeq,
                  .vocab_size = kVocab,
                  .untie_embeddings_and_output_weights = name != "gpt_tied" && name != "qwen3"};
  if (name == "llama" || name == "qwen3") {
    ModelConfig& model = config.model;
    model.ffn_hidden_size = 24;
    model.num_attention_heads = 4;
    model.num_query_groups = 2;
    model.kv_channels = 6;
    model.normalization = Norm::rmsnorm;
    model.swiglu = true;
    model.add_bias_linear = false;
    model.position_embedding_type = Positions::rope;
    model.use_rope_scaling = true;
    model.qk_layernorm = name == "qwen3";
  }
  config.batch = {.micro_batch_size = kBatch, .global_batch_size = kBatch};
  config.data.path = "golden";  // never opened: the test makes the tokens
  config.train.train_iters = 10;
  return config;
}

int32_t token(int64_t step, int64_t b, int64_t i) {
  return static_cast<int32_t>((step * 131 + b * 17 + i * i * 7 + i * 3 + 5) % kVocab);
}

class Golden : public testing::TestWithParam<const char*> {
 protected:
  void train_beside_golden(const std::string& name, CpuIsa isa);
};

void Golden::train_beside_golden(const std::string& name, CpuIsa isa) {
  const auto golden = parse_json(read_text(source_path("tests/golden/" + name + ".json")));

  run_thread_ranks(1, [&](Communicator& world) {
    // given: the same model and optimizer
    const auto device = create_cpu_device();
    const auto stream = device->create_compute_stream();
    const auto ops = create_cpu_ops(1, isa);
    LoadedConfig loaded{.config = golden_config(name), .origins = {}, .path = "golden"};
    const Layout layout = resolve(loaded, {});
    RankState state(loaded.config, layout, {}, *device);
    GptStage& stage = state.stages[0];
    const Residual grad(state.boundary_buffers[0]);
    WeightGradQueue queue;
    UnitHooks none;
    Context ctx{.ops = *ops,
                .compute = *stream,
                .tensor = {world, false},
                .weight_grads = queue,
                .units = none,
                .scratch = state.scratch,
                .tensor_comm_stream = nullptr};
    ops->run(op::Fill{state.flat.stored_weights, 0}, *stream);
    for (const Param& param : state.params.all()) initialize_weight(param, 1234, 1, *device, *stream);
    state.optimizer->reset(*ops, *stream);

    for (int64_t step = 0; step < 10; ++step) {
      // when: a step is made
      for (int64_t i = 0; i < kSeq; ++i)
        for (int64_t b = 0; b < kBatch; ++b) {
          stage.tokens(0).as<int32_t>()[i * kBatch + b] = token(step, b, i);
          stage.labels(0).as<int32_t>()[i * kBatch + b] = token(step, b, i + 1);
        }
      const MicroBatch micro_batch{.loss_scale = 1.0f / (kSeq * kBatch)};
      state.flat.clear_grads(*ops, *stream);
      ops->run(op::Fill{state.loss, 0}, *stream);
      stage.forward(ctx, 0, micro_batch, state.loss);
      stage.backward(ctx, 0, -1, micro_batch, grad);

      // then: the loss, the norm and, on the first step, every gradient agree
      const double loss = golden["losses"][static_cast<size_t>(step)];
      EXPECT_NEAR(state.loss.as<float>()[0], loss, 1e-5 * loss) << "step " << step;
      state.optimizer->compute_norm(*ops, world, world, 1.0f, {}, *stream);
      const double norm = golden["grad_norms"][static_cast<size_t>(step)];
      EXPECT_NEAR(state.optimizer->norm().as<float>()[0], norm, 1e-4 * norm) << "step " << step;
      if (step == 0) {
        for (const Param& param : state.params.all()) {
          const std::vector<double> expected = golden["first_gradients"][param.spec.name];
          double difference = 0, scale = 0;
          for (size_t i = 0; i < expected.size(); ++i) {
            difference = std::max(difference, std::abs(param.grad.as<float>()[i] - expected[i]));
            scale = std::max(scale, std::abs(expected[i]));
          }
          // Relative to the tensor's largest gradient. The key part of a bias moves all scores of a row alike, so its
          // gradient is zero but for rounding; the tensor's scale covers it.
          EXPECT_LE(difference, 1e-4 * scale) << param.spec.name;
          EXPECT_GT(scale, 0) << param.spec.name;
          for (int64_t i = static_cast<int64_t>(expected.size()); i < param.grad.numel(); ++i)
            EXPECT_EQ(param.grad.as<float>()[i], 0) << "padding of " << param.spec.name;
        }
      }
      state.optimizer->step(*ops, {}, {.learning_rate = 1e-2f, .weight_decay = 0.1f, .step = step + 1}, *stream);
    }
  });
}

TEST_P(Golden, LossesAndGradientsAreThoseOfPyTorch) {
  for (const CpuIsa isa : usable_cpu_isas()) {
    SCOPED_TRACE(name_of(isa));
    train_beside_golden(GetParam(), isa);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::Values("gpt_tied", "gpt_untied", "llama", "qwen3"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trivet
