// The head in chunks of rows (model.cross_entropy_chunk_rows): the loss and every gradient have the same bits as with
// whole logits, except the output weight's gradient, which is summed in another order.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>

#include "engine/model/init.h"
#include "engine/model/modules.h"
#include "parallel/comm/world.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

constexpr int kChunkSteps = kMatrixSteps;

Config in_chunks(Config config, int64_t rows) {
  config.model.cross_entropy_chunk_rows = rows;
  return config;
}

// Results of passes over two micro-batches, the second of which adds to the gradients of the first.
struct Passes {
  std::vector<float> losses;                            // after each pass, then of the second pass without training
  std::map<std::string, std::vector<float>> gradients;  // by parameter
};

Passes run_passes(const Config& config, Communicator& world) {
  const auto [run, layout] = resolved(config, world.size());
  const auto device = create_cpu_device();
  const auto ops = create_cpu_ops(1);
  const auto compute = device->create_compute_stream();
  RankState state(run, layout, {{Axis::tp, world.rank()}}, *device);
  state.flat.initialize([&](const Param& param) { initialize_weight(param, 1, 1, *device, *compute); }, *ops, *compute);
  state.flat.clear_grads(*ops, *compute);
  WeightGradQueue queue;
  UnitHooks hooks;
  Context ctx{.ops = *ops,
              .compute = *compute,
              .tensor = {world, state.shape.sequence_parallel},
              .weight_grads = queue,
              .units = hooks,
              .scratch = state.scratch};
  GptStage& stage = state.stages[0];
  Passes passes;
  const auto pass = [&](int micro_batch, bool training) {
    int labelled = 0;
    for (int i = 0; i < state.shape.tokens(); ++i) {
      stage.tokens(0).as<int32_t>()[i] = (i * 7 + micro_batch) % 61;
      // The last rows have no labels, so some chunks have none.
      const bool has_label = i % 3 != 1 && i < state.shape.tokens() - 5;
      stage.labels(0).as<int32_t>()[i] = has_label ? (i * 5 + 2 * micro_batch) % 61 : -1;
      labelled += has_label;
    }
    stage.poison(ctx, 0);
    ops->run(op::Fill{state.loss, 0}, *compute);
    const MicroBatch how{.training = training, .loss_scale = 1.0f / static_cast<float>(labelled)};
    stage.forward(ctx, 0, how, state.loss);
    if (training) stage.backward(ctx, 0, -1, how, Residual(state.boundary_buffers[0]), state.loss);
    passes.losses.push_back(state.loss.as<float>()[0]);
  };
  pass(0, true), pass(1, true), pass(1, false);
  for (const Param& param : state.params.all()) {
    const float* const grad = param.grad.as<float>();
    passes.gradients[param.spec.name].assign(grad, grad + param.grad.numel());
  }
  EXPECT_LE(state.scratch.high_water(), state.scratch.capacity());
  return passes;
}

// The largest difference between two gradients, relative to the largest element.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(a[i]) - b[i]));
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
  }
  return difference / scale;
}

TEST(LossChunks, GiveTheBitsOfWholeLogits) {
  struct Case {
    int t;
    bool sequence_parallel, tied;
  };
  for (const Case& c : {Case{1, false, true}, Case{1, false, false}, Case{2, false, false}, Case{2, true, true},
                        Case{4, true, false}}) {
    Config config = cut(tiny_config(), {.t = c.t, .sequence_parallel = c.sequence_parallel});
    config.batch.global_batch_size = config.batch.micro_batch_size;
    config.model.num_layers = 1;
    config.model.untie_embeddings_and_output_weights = !c.tied;
    run_thread_ranks(c.t, [&](Communicator& world) {
      const Passes whole = run_passes(in_chunks(config, 0), world);
      for (const int64_t rows : {1, 7, 16, 17}) {  // s = 16 of 32
        SCOPED_TRACE(fmt::format("t {}, tied {}, {} rows", c.t, c.tied, rows));
        const Passes chunks = run_passes(in_chunks(config, rows), world);
        EXPECT_EQ(chunks.losses, whole.losses);
        EXPECT_EQ(chunks.losses[1], chunks.losses[2]);
        for (const auto& [name, gradient] : chunks.gradients) {
          const bool output = name == name_of(c.tied ? Module::word_embeddings : Module::output_layer) + ".weight";
          if (output) EXPECT_LT(distance(gradient, whole.gradients.at(name)), 1e-6) << name;
          else EXPECT_EQ(gradient, whole.gradients.at(name)) << name;
        }
      }
    });
  }
}

TEST(LossChunks, TrainAsWholeLogitsDoUnderEveryLayout) {
  for (const bool tied : {true, false}) {
    Config config = tiny_config();
    config.model.untie_embeddings_and_output_weights = !tied;
    const Curve whole = train_on_threads(config, 1, 10);
    const Curve chunks = train_on_threads(in_chunks(config, 7), 1, 10, true);
    EXPECT_EQ(chunks.losses[0], whole.losses[0]);
    EXPECT_NE(chunks.weights_hash, whole.weights_hash) << "chunks do something";
    expect_near(chunks, whole);
    for (const Cut& c : {Cut{.t = 2, .p = 2, .schedule = "gpipe"}, Cut{.t = 2, .d = 2, .sequence_parallel = true},
                         Cut{.t = 4, .p = 2, .sequence_parallel = true, .schedule = "zb-v"},
                         Cut{.d = 2, .strategy = "optim_grads_params", .c = 2}})
      expect_near(train_on_threads(in_chunks(cut(config, c), 7), c.ranks(), 10, true), whole, c.schedule);
  }
}

// Options that keep the order of additions change no bit.
TEST(LossChunks, HaveTheSameBitsUnderAnyPipelineThreadsAndRecompute) {
  Config config = in_chunks(tiny_config(), 7);
  config.model.untie_embeddings_and_output_weights = true;
  const Curve reference = train_on_threads(config, 1, kChunkSteps);
  for (const Cut& c : {Cut{.p = 2, .schedule = "gpipe"}, Cut{.p = 2, .schedule = "zb-v"},
                       Cut{.p = 2, .schedule = "interleaved", .v = 2}})
    expect_equal(train_on_threads(cut(config, c), 2, kChunkSteps, true), reference, c.schedule);
  Config other = config;
  other.device.threads_per_rank = 2;
  other.model.recompute_granularity = RecomputeGranularity::full;
  other.model.recompute_method = RecomputeMethod::uniform;
  other.model.recompute_num_layers = 2;
  expect_equal(train_on_threads(other, 1, kChunkSteps, true), reference);
  // Gradient and weight collectives overlapped with compute.
  const Config zero = cut(config, {.d = 2, .strategy = "optim_grads_params"});
  Config overlapped = zero;
  overlap_data_parallel(overlapped);
  expect_equal(train_on_threads(overlapped, 2, kChunkSteps, true), train_on_threads(zero, 2, kChunkSteps));
}

// Generation during training reads one token's logits, but a chunk's buffer holds those of other tokens.
TEST(LossChunks, LeaveTheLogitsThatGenerationReads) {
  const std::vector<int32_t> text{5, 60, 17, 3, 3, 42, 8, 0, 21};
  for (const Cut& c : {Cut{}, Cut{.t = 2, .p = 2, .sequence_parallel = true, .strategy = "optim_grads_params"}}) {
    std::vector<std::vector<float>> logits;
    for (const int64_t rows : {0, 1, 7})
      with_trainers(in_chunks(cut(tiny_config(), c), rows), c.ranks(), [&](Trainer& trainer) {
        const std::vector<float> whole = trainer.rank().next_token_logits(text);
        EXPECT_EQ(trainer.rank().next_token_logits(text, 6), whole);
        if (trainer.world().rank() == 0) logits.push_back(whole);
      });
    EXPECT_EQ(logits[1], logits[0]);
    EXPECT_EQ(logits[2], logits[0]);
  }
}

// None of GPipe's slots, one per micro-batch, holds logits (fp32, t = 2).
TEST(LossChunks, TakeTheMemoryOfAChunk) {
  Config config = cut(tiny_config(), {.t = 2, .p = 2, .schedule = "gpipe"});
  config.model.make_vocab_size_divisible_by = 32;  // 64 columns, 32 per rank
  const auto activations = [&](int64_t rows, int pp) {
    const auto [run, layout] = resolved(in_chunks(config, rows), 4);
    for (const MemoryItem& item : plan_memory(run, layout, {{Axis::pp, pp}}).items)
      if (item.name == "activations") return item.bytes;
    return int64_t{-1};
  };
  const int64_t tokens = 32, slots = 4, row = 4 * 32, statistics = 2 * 4;
  EXPECT_EQ(activations(0, 1) - activations(7, 1), slots * tokens * (row + statistics) - 7 * row);
  EXPECT_EQ(activations(0, 0), activations(7, 0));
}

}  // namespace
}  // namespace trivet::test
