// Trainer tests beyond the equality of layouts: memory, non-finite numbers and spikes, the learning rate, sampling,
// initial weights, the split of layers into stages.
#include <atomic>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <malloc.h>
#include <set>

#include "engine/config/validate.h"
#include "engine/model/init.h"
#include "engine/train/diagnosis.h"
#include "engine/train/generate.h"
#include "engine/train/lr_schedule.h"
#include "kernels/ops.h"
#include "tests/support/training.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" size_t __sanitizer_get_current_allocated_bytes();  // GCC does not ship allocator_interface.h
#endif

namespace trivet::test {
namespace {

// ---- memory

// Heap bytes in use. A sanitizer uses its own allocator, with which mallinfo2() crashes.
size_t heap_bytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return __sanitizer_get_current_allocated_bytes();
#else
  return mallinfo2().uordblks;
#endif
}

class Memory : public testing::TestWithParam<LayoutCase> {};

TEST_P(Memory, IsWhatWasPlannedAndDoesNotGrow) {
  Config config = config_of(GetParam());
  config.model.hidden_dropout = 0.1;
  const Layout layout = resolved(config, GetParam().ranks()).layout;
  with_trainers(config, GetParam().ranks(), [&](Trainer& trainer) {
    const MemoryPlan planned = plan_memory(trainer.config(), layout, trainer.mesh().at);
    std::vector<std::vector<Span>> spans(trainer.trace().rows().size());  // collected after each step, as in a run
    const auto run_steps = [&] {
      for (int i = 0; i < 3; ++i) {
        trainer.step();
        size_t number = 0;
        for (TraceRow& row : trainer.trace().rows()) row.take(spans[number++]);
      }
    };
    run_steps();
    trainer.world().barrier();
    const size_t before = heap_bytes();
    trainer.world().barrier();
    run_steps();
    trainer.world().barrier();
    // The heap holds the trace's spans, some tens of kilobytes; a tensor leaked by a step would take more.
    if (trainer.world().rank() == 0) {
      EXPECT_LT(heap_bytes(), before + 400'000);
    }
    trainer.world().barrier();

    EXPECT_EQ(trainer.state().memory().items, planned.items);
    EXPECT_EQ(trainer.state().scratch.high_water(), trainer.state().scratch.capacity());
  });
}

void bf16(Config& c) { c.precision.dtype = DType::bf16; }
auto tensor_overlap(const char* mode) {
  return [=](Config& c) { set_key(c, "overlap.tp_comm_overlap", mode); };
}

constexpr Cut kSequence{.t = 2, .sequence_parallel = true};
INSTANTIATE_TEST_SUITE_P(
    Layouts, Memory,
    testing::Values(LayoutCase{"one"}, LayoutCase{"bf16", {}, bf16}, LayoutCase{"tensor", {.t = 2}},
                    LayoutCase{"sequence", kSequence}, LayoutCase{"pipeline", {.p = 2, .schedule = "gpipe"}},
                    LayoutCase{"zero_bubble", {.p = 2, .schedule = "zb-h1"}},
                    LayoutCase{"norms_of_heads", {.t = 2, .p = 2, .schedule = "zb-h1"}, as_qwen3},
                    LayoutCase{"deferred", {.p = 2}, [](Config& c) { c.overlap.defer_embedding_wgrad_compute = true; }},
                    LayoutCase{"loss_in_chunks",
                               {.t = 2, .p = 2, .sequence_parallel = true, .schedule = "gpipe"},
                               [](Config& c) { c.model.cross_entropy_chunk_rows = 7; }},
                    LayoutCase{"bulk", kSequence, tensor_overlap("bulk")},
                    LayoutCase{"ring", kSequence, tensor_overlap("ring")},
                    LayoutCase{"ring_of_four", {.t = 4, .sequence_parallel = true}, tensor_overlap("ring")},
                    LayoutCase{"pipelined",
                               {.t = 4, .sequence_parallel = true},
                               [](Config& c) {
                                 bf16(c);
                                 c.overlap.tp_comm_overlap = TensorOverlap::pipeline;
                               }},
                    LayoutCase{"recompute",
                               {.p = 2},
                               [](Config& c) {
                                 c.model.recompute_granularity = RecomputeGranularity::full;
                                 c.model.recompute_method = RecomputeMethod::uniform;
                                 c.model.recompute_num_layers = 2;
                               }},
                    LayoutCase{"recompute_attention", kSequence,
                               [](Config& c) { c.model.recompute_granularity = RecomputeGranularity::selective; }},
                    LayoutCase{"v_shaped", {.t = 2, .p = 2, .sequence_parallel = true, .schedule = "zb-v"}, bf16}),
    [](const auto& info) { return info.param.name; });

// Saves queries and keys both before and after the norm, and the norm's statistics.
TEST(PlannedMemory, NormsOfHeadsSaveWhatTheyRead) {
  const auto activations = [](bool norms, const char* normalization) {
    Config config = tiny_config();
    as_qwen3(config);
    config.model.qk_layernorm = norms;
    set_key(config, "model.normalization", normalization);
    const auto [run, layout] = resolved(config, 1);
    for (const MemoryItem& item : plan_memory(run, layout, {}).items)
      if (item.name == "activations") return item.bytes;
    return int64_t{-1};
  };
  const int64_t layers = 4, heads = 16 * 2 * (8 + 4), d = 8;  // s b (a + g)
  EXPECT_EQ(activations(true, "RMSNorm") - activations(false, "RMSNorm"), 4 * layers * heads * (d + 1));
  EXPECT_EQ(activations(true, "LayerNorm") - activations(false, "LayerNorm"), 4 * layers * heads * (d + 2));
}

// Bytes of activations that recompute saves, against tensors counted by hand (bf16; n micro-batches in flight).
TEST(PlannedMemory, RecomputeSavesWhatItDoesNotKeep) {
  const auto activations = [](const char* granularity, const char* modules, const char* method, int64_t layers) {
    Config config = tiny_config();
    config.precision.dtype = DType::bf16;
    config.parallel.pipeline_model_parallel_size = 2;
    config.model.num_layers = 8;  // 4 per stage
    set_key(config, "model.recompute_granularity", granularity);
    set_key(config, "model.recompute_modules", modules);
    set_key(config, "model.recompute_method", method);
    config.model.recompute_num_layers = layers;
    const auto [run, layout] = resolved(config, 2);
    for (const MemoryItem& item : plan_memory(run, layout, {}).items)
      if (item.name == "activations") return item.bytes;
    return int64_t{-1};
  };
  const int64_t n = 2, blocks = 4, s = 16, b = 2, h = 32, f = 128, a = 4;  // n: in flight on rank 0 of 2 under 1F1B
  const int64_t sbh = 2 * s * b * h, sbf = 2 * s * b * f, row = 4 * s * b;
  const int64_t norms = 2 * sbh + 4 * row, attention = sbh + row * a, mlp = 2 * sbf;
  const int64_t all = norms + 3 * sbh + attention + sbh + mlp + sbh;  // and qkv, middle, out
  const int64_t none = activations("none", "core_attn", "none", 0);
  // One set of these activations for all blocks instead of one set per block per micro-batch.
  EXPECT_EQ(none - activations("selective", "core_attn", "none", 0), (n * blocks - 1) * attention);
  EXPECT_EQ(none - activations("selective", "layernorm,mlp", "none", 0), (n * blocks - 1) * (norms + mlp));
  EXPECT_EQ(none - activations("full", "core_attn", "uniform", 1), (n * blocks - 1) * (all - sbh));
  EXPECT_EQ(none - activations("full", "core_attn", "uniform", 2),
            (n * blocks - 2) * (all - sbh) + (n * blocks / 2 - 1) * sbh);
  EXPECT_EQ(none - activations("full", "core_attn", "block", 3), (n * 3 - 1) * (all - sbh));
}

TEST(Bf16, LearnsLikeFp32) {
  Config config = tiny_config();
  const Curve fp32 = train_on_threads(config, 1, 10);
  config.precision.dtype = DType::bf16;
  const Curve bf16 = train_on_threads(config, 4, 10);  // data parallel
  for (size_t i = 0; i < fp32.losses.size(); ++i) EXPECT_NEAR(bf16.losses[i], fp32.losses[i], 0.02) << "step " << i + 1;
  const Curve two_ways = train_on_threads(cut(config, {.t = 2, .p = 2}), 4, 10);
  for (size_t i = 0; i < fp32.losses.size(); ++i)
    EXPECT_NEAR(two_ways.losses[i], fp32.losses[i], 0.02) << "step " << i + 1;
}

// ---- the update

Tensor moment_of(const Optimizer& optimizer, std::string_view words, const OwnedShard& shard) {
  const auto states = optimizer.states();
  const auto found = std::ranges::find(states, words, &Optimizer::State::words);
  check(found != states.end(), "the optimizer keeps no such thing");
  return Optimizer::part(found->owned, shard);
}

std::vector<float> floats_of(Trainer& trainer, Tensor tensor) {
  const std::vector<std::byte> bytes = bytes_of(trainer, tensor);
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

// One step in double, from the state before it and the gradients that it leaves, with no number at its default.
TEST(Update, IsAdamWOfClippedGradientsWithTheNumbersOfTheConfig) {
  for (const double clip : {0.0, 0.05})
    for (const bool all_decay : {false, true}) {
      Config config = tiny_config();
      const double lr = 0.01, beta1 = 0.8, beta2 = 0.9, eps = 1e-3, decay = 0.3;
      config.optimizer.lr = lr;  // from the second step on, where the warm-up ends
      config.optimizer.adam_beta1 = beta1;
      config.optimizer.adam_beta2 = beta2;
      config.optimizer.adam_eps = eps;
      config.optimizer.weight_decay = decay;
      config.optimizer.clip_grad = clip;
      config.optimizer.decay_norms_and_biases = all_decay;
      with_trainers(config, 1, [&](Trainer& trainer) {
        trainer.step();
        const RankState& state = trainer.state();
        const auto of = [&](const auto& which) {
          std::vector<std::vector<float>> all;
          for (const OwnedShard& piece : state.flat.owned) all.push_back(floats_of(trainer, which(piece)));
          return all;
        };
        const auto main_weights = [&](const OwnedShard& piece) { return state.optimizer->main_weights(piece); };
        const auto moment = [&](const char* words) {
          return [&state, words](const OwnedShard& piece) { return moment_of(*state.optimizer, words, piece); };
        };
        const auto weights = of(main_weights), m = of(moment("first moment")), v = of(moment("second moment"));
        // when
        const StepResult result = trainer.step();
        // then
        const auto updated = of(main_weights);
        double squares = 0, difference = 0;
        for (const OwnedShard& piece : state.flat.owned)
          for (const float g : floats_of(trainer, piece.grad)) squares += static_cast<double>(g) * g;
        const double norm = std::sqrt(squares), scale = clip > 0 ? clip / (norm + 1e-6) : 1;
        EXPECT_LT(scale, clip > 0 ? 0.5 : 1.5);
        EXPECT_NEAR(result.grad_norm, norm, 1e-6 * norm);
        for (size_t p = 0; p < weights.size(); ++p) {
          const OwnedShard& piece = state.flat.owned[p];
          const bool decays = all_decay || piece.param->shape.rank == 2;
          const std::vector<float> grad = floats_of(trainer, piece.grad);
          for (size_t i = 0; i < grad.size(); ++i) {
            const double g = grad[i] * scale, w = weights[p][i];
            const double m_hat = (beta1 * m[p][i] + (1 - beta1) * g) / (1 - beta1 * beta1);
            const double v_hat = (beta2 * v[p][i] + (1 - beta2) * g * g) / (1 - beta2 * beta2);
            const double expected = w - lr * (m_hat / (std::sqrt(v_hat) + eps) + (decays ? decay * w : 0));
            difference = std::max(difference, std::abs(updated[p][i] - expected));
          }
        }
        EXPECT_LT(difference, 1e-6);
      });
    }
}

// ---- progress

TEST(Progress, IsToldAfterEachOpOfAStepAndOfNoEvaluation) {
  with_trainers(cut(tiny_config(), {.p = 2}), 2, [](Trainer& trainer) {
    std::vector<size_t> told, expected;
    const size_t ops = trainer.rank().schedule.programs[static_cast<size_t>(trainer.mesh().at[Axis::pp])].size();
    trainer.rank().executor.on_progress([&](size_t done, size_t of) {
      EXPECT_EQ(of, ops);
      told.push_back(done);
    });
    trainer.step();
    evaluate(trainer, 1);
    while (expected.size() < ops) expected.push_back(expected.size() + 1);
    EXPECT_EQ(told, expected);
  });
}

// Tokens of the steps before a resume count as they were: with RoPE, a run may go on with longer or shorter samples.
TEST(Progress, TokensOfSamplesOfAnotherLengthStayCounted) {
  for (const int64_t before : {100, 1000})  // in 16 samples; here, a step is 8 samples of 16 tokens
    with_trainers(tiny_config(), 1, [&](Trainer& trainer) {
      trainer.resume({.step = 2, .consumed_samples = 16, .consumed_tokens = before});
      EXPECT_EQ(trainer.step().consumed_tokens, before + 8 * 16);
      EXPECT_EQ(trainer.consumed_tokens(), before + 8 * 16);
    });
}

// ---- evaluation

TEST(Evaluation, IsTheMeanLossATokenWithoutDropout) {
  const auto losses = [](const Config& config) {
    std::vector<double> losses;
    with_trainers(config, 1, [&](Trainer& trainer) { losses = {evaluate(trainer, 1), evaluate(trainer, 3)}; });
    return losses;
  };
  Config config = tiny_config();
  const std::vector<double> plain = losses(config);
  for (const double loss : plain) EXPECT_NEAR(loss, std::log(61.0), 0.05);
  EXPECT_NE(plain[0], plain[1]);
  config.model.hidden_dropout = config.model.attention_dropout = 0.5;
  EXPECT_EQ(losses(config), plain);
}

// Gives evaluations a single sample of a dataset.
class OneSample : public BatchSource {
 public:
  explicit OneSample(const GptDataset& data) : data_(data) {}
  const Batch& next() override {
    std::vector<int32_t> tokens(static_cast<size_t>(data_.seq_length()) + 1);
    data_.sample(index, tokens);
    batch_.tokens.assign(tokens.begin(), tokens.end() - 1);
    batch_.labels.assign(tokens.begin() + 1, tokens.end());
    std::ranges::replace(batch_.tokens, -1, 0);
    return batch_;
  }
  void restart(int64_t) override {}
  int64_t index = 0;

 private:
  const GptDataset& data_;
  Batch batch_;
};

TEST(Evaluation, OfTheFirstSamplesIsTheMeanOverTheirTokensOnEveryLayout) {
  // slightly more than one global batch, less than one, and the first samples of larger sets
  for (const auto& [documents, first] : {std::pair<int64_t, int64_t>{12, 0}, {3, 0}, {12, 9}, {12, 3}}) {
    Config config = tiny_config();
    const GptDataset valid(
        tiny_dataset(), {2, 2 + documents},
        {.name = "valid", .seq_length = 16, .vocab_size = 61, .seed = 5, .in_order = true, .once = true});
    ASSERT_NE(valid.labels() % 16, 0);
    ASSERT_EQ(valid.samples() < 8, documents == 3) << valid.samples();
    const int64_t samples = first > 0 ? first : valid.samples(), labels = valid.labels_of(samples);
    ASSERT_LE(samples, valid.samples());
    ASSERT_EQ(labels, first > 0 ? 16 * first : valid.labels());
    const auto evaluate = [&](const Config& layout, int ranks, const std::function<double(Trainer&, OneSample&)>& f) {
      double loss = 0;
      run_thread_ranks(ranks, [&](Communicator& world) {
        const Resolved run = resolved(layout, ranks);
        const BatchPlan plan = batch_plan_of(run.config, run.layout, world.rank());
        const TinyData data(run.config, plan);
        BatchLoader train(data.train_data, plan, 0), loader(valid, plan.of_full_batches(samples), 1);
        OneSample one(valid);
        Trainer trainer(run.config, run.layout, world, &train);
        const double mine =
            f ? f(trainer, one) : *trainer.evaluate(loader, (samples + 7) / 8, labels, [] { return false; });
        if (world.rank() == 0) loss = mine;
      });
      return loss;
    };
    Config alone = config;
    alone.batch = {.micro_batch_size = 1, .global_batch_size = 1};
    const double expected = evaluate(alone, 1, [&](Trainer& trainer, OneSample& one) {
      double sum = 0;
      for (one.index = 0; one.index < samples; ++one.index) sum += *trainer.evaluate(one, 1, 1, [] { return false; });
      return sum / static_cast<double>(labels);
    });
    for (const Cut& how :
         {Cut{}, Cut{.p = 2, .schedule = "zb-v"}, Cut{.t = 2, .p = 2, .d = 2, .sequence_parallel = true},
          Cut{.d = 2, .strategy = "optim_grads_params", .c = 2}})
      EXPECT_NEAR(evaluate(cut(config, how), how.ranks(), nullptr), expected, 2e-6 * expected);
  }
}

// While the batch grows from three micro-batches to four, an evaluation still reads full batches: three batches of
// eight samples hold the same samples as four of six.
TEST(Evaluation, OfARampReadsFullBatches) {
  Config config = tiny_config();
  config.optimizer.lr_warmup_iters = 0;
  config.optimizer.lr_decay_iters.reset();
  config.optimizer.lr_decay_style = LrDecay::constant;
  config.optimizer.min_lr.reset();
  const auto losses = [](const Config& run, int ranks, int64_t batches) {
    std::vector<double> losses;
    with_trainers(run, ranks, [&](Trainer& trainer) {
      const double loss = trainer.step().loss, validation = evaluate(trainer, batches), next = trainer.step().loss;
      if (trainer.world().rank() == 0) losses = {loss, validation, next};
    });
    return losses;
  };
  config.batch.global_batch_size = 6;
  const std::vector<double> constant = losses(config, 1, 4);
  config.batch.global_batch_size = 8;
  config.batch.rampup_batch_size = std::vector<int64_t>{6, 2, 12};  // two steps
  config.train.train_iters = 0;
  config.train.train_samples = 36;
  EXPECT_EQ(losses(config, 1, 3), constant);
  for (const char* schedule : {"1f1b", "gpipe", "zb-v"}) {
    const std::vector<double> cut_over_two = losses(cut(config, {.p = 2, .schedule = schedule}), 2, 3);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(cut_over_two[i], constant[i], 2e-5 * constant[i]) << schedule << i;
  }
}

TEST(Evaluation, InMidRunChangesNothing) {
  Config config = cut(tiny_config(), {.p = 2, .d = 2, .strategy = "optim_grads_params"});
  config.model.hidden_dropout = config.model.attention_dropout = 0.1;
  config.overlap.average_in_collective = true;
  overlap_data_parallel(config);
  const auto losses = [&](bool evaluates) {
    std::vector<double> losses;
    with_trainers(config, 4,
                  [&](Trainer& trainer) {
                    std::vector<double> mine;
                    for (int i = 0; i < 4; ++i) {
                      mine.push_back(trainer.step().loss);
                      if (evaluates) evaluate(trainer, 1 + i % 2);
                    }
                    if (trainer.world().rank() == 0) losses = mine;
                  },
                  {.poison = true});
    return losses;
  };
  EXPECT_EQ(losses(true), losses(false));
}

// ---- dropout

// Records the dropout arguments of all calls.
class DropoutNotes : public Ops {
 public:
  struct Note {
    std::string op;
    Dropout dropout;
  };
  DropoutNotes(std::unique_ptr<Ops> ops, std::vector<Note>& notes) : ops_(std::move(ops)), notes_(notes) {}

  void run(const AnyOp& any, Stream& stream) override {
    std::visit(
        [&](const auto& op) {
          if constexpr (requires { op.dropout; }) notes_.push_back({op.kSpan.name, op.dropout});
        },
        any);
    ops_->run(any, stream);
  }

 private:
  const std::unique_ptr<Ops> ops_;
  std::vector<Note>& notes_;
};

TEST(DropoutSites, AreUnlikeForwardsAndTheSameBackwards) {
  // given
  Config config = tiny_config();
  config.model.hidden_dropout = 0.1;
  config.model.attention_dropout = 0.2;
  std::vector<DropoutNotes::Note> notes;
  const MakeBackend noting = [&](const Config& c, Communicator& world, int threads) {
    Backend backend = make_backend(c, world, threads);
    backend.ops = std::make_unique<DropoutNotes>(std::move(backend.ops), notes);
    return backend;
  };
  const auto sites_of = [&](std::initializer_list<std::string_view> ops) {
    std::multiset<uint64_t> sites;
    for (const auto& [op, dropout] : notes)
      if (std::find(ops.begin(), ops.end(), op) != ops.end()) sites.insert(dropout.site);
    return sites;
  };
  with_trainers(config, 1,
                [&](Trainer& trainer) {
                  // when
                  trainer.step();
                  // then: each micro-batch has one site in the embedding and three in each layer
                  const auto all = sites_of({"position_forward", "attention_forward", "bias_dropout_add"});
                  EXPECT_EQ(std::set(all.begin(), all.end()).size(), 1u + 3 * 4);
                  EXPECT_EQ(all.size(), 4u * (1 + 3 * 4));
                  EXPECT_EQ(sites_of({"position_backward"}), sites_of({"position_forward"}));
                  EXPECT_EQ(sites_of({"attention_backward"}), sites_of({"attention_forward"}));
                  EXPECT_EQ(sites_of({"dropout_backward"}), sites_of({"bias_dropout_add"}));
                  for (const auto& [op, dropout] : notes)
                    EXPECT_EQ(dropout.probability, op.starts_with("attention") ? 0.2f : 0.1f) << op;
                  // and evaluations use no dropout
                  notes.clear();
                  evaluate(trainer, 1);
                  EXPECT_FALSE(notes.empty());
                  for (const auto& [op, dropout] : notes) EXPECT_EQ(dropout.probability, 0) << op;
                },
                {.make_backend = noting});
}

TEST(DropoutSites, AreUnlikeInAllLayersOfADeepModel) {
  GptShape shape;
  shape.training = {.hidden_dropout = 0.1f, .attention_dropout = 0.1f};
  const auto site_of = [&](DropoutSite site, int64_t layer) { return make_dropout(shape, site, layer, 1, {}).site; };
  const int64_t layers = 20'000;  // more sites than 16 bits can number
  std::set<uint64_t> sites = {site_of(DropoutSite::embedding, 0)};
  for (int64_t layer = 0; layer < layers; ++layer)
    for (const auto site : {DropoutSite::attention, DropoutSite::attention_branch, DropoutSite::mlp_branch})
      sites.insert(site_of(site, layer));
  EXPECT_EQ(std::ssize(sites), 1 + 3 * layers);
}

// ---- NaN, Inf and loss spikes

TEST(NonFinite, StopsAllRanksAndNamesTheParameter) {
  const Config config = cut(tiny_config(), {.t = 2});
  try {
    with_trainers(config, 4, [](Trainer& trainer) {
      trainer.step();
      for (Param& param : trainer.state().params.all())
        if (param.spec.name == "decoder.layers.2.mlp.linear_fc2.bias" && trainer.world().rank() == 3)
          param.weight.as<float>()[5] = std::numeric_limits<float>::infinity();
      trainer.step();
    });
    FAIL() << "a step with an infinite weight";
  } catch (const NumericsError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.rank, 3) << text;
    EXPECT_NE(text.find("step 2"), std::string::npos) << text;
    EXPECT_NE(text.find("on rank 3 the weight decoder.layers.2.mlp.linear_fc2.bias was not finite even before the "
                        "step: the first such value, at element 5 of 32, is infinite"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("samples 8 to 15"), std::string::npos) << text;
  }
}

TEST(NonFinite, TheSourceIsWhatWasThereFirst) {
  using Source = NonFiniteSource;
  constexpr int64_t kNone = RankNumbers::kNone;
  // Two replicas of two stages each; ranks 0 and 2 are replica 0, 1 and 3 replica 1. All ranks hold NaN after the sums.
  const auto ranks = [&] {
    return std::vector<RankNumbers>{
        {.replica = 0, .grad = 9}, {.replica = 1, .grad = 9}, {.replica = 0, .grad = 4}, {.replica = 1, .grad = 4}};
  };
  const auto expect = [&](const std::vector<RankNumbers>& all, Source::Kind kind, const std::vector<int>& which,
                          int replicas) {
    const Source source = find_source(all);
    EXPECT_EQ(source.kind, kind);
    EXPECT_EQ(source.ranks, which);
    EXPECT_EQ(source.replicas, replicas);
  };
  expect(std::vector<RankNumbers>(4), Source::none, {}, 0);
  expect(ranks(), Source::grad, {2, 3}, 0);  // an overflowing sum: in the tensor that is reduced first
  auto all = ranks();
  all[1].local_grad = 9, all[3].local_grad = 5;  // the backward pass reaches rank 3 first
  expect(all, Source::local_grad, {3}, 1);
  EXPECT_EQ(find_source(all).replica, (std::vector<int>{1, 3}));
  all[1].local_grad = 5;
  expect(all, Source::local_grad, {1, 3}, 1);
  all[2].local_grad = 7;  // another replica has its own source
  expect(all, Source::local_grad, {2}, 2);
  all[2].local_grad = kNone;
  all[3].loss = 1;
  expect(all, Source::loss, {3}, 1);
  all[0].weight = 1;
  expect(all, Source::weight, {0}, 0);
}

// The next step, which is queued before the host reads this step's result, searches its own gradients.
TEST(NonFinite, IsNamedAsItWasBeforeTheSumOverRanks) {
  struct Case {
    const char* fault;
    Cut cut;
    int rank;
    const char* text;
  };
  const Case cases[] = {
      {"nan:1:2",
       {.d = 2},
       1,
       "on rank 1 (pipeline rank 0) are not finite before their sum over ranks; the first, at "
       "element 0 of "},
      {"inf:last:2", {.t = 2, .p = 2, .d = 2}, 7, "on rank 7 (pipeline rank 1) are not finite before their sum"},
      {"nan:3:2", {.d = 4, .strategy = "optim"}, 3, "on rank 3 (pipeline rank 0) are not finite before their sum"},
      {"nan:2:2", {.d = 4, .strategy = "optim_grads"}, 2, "on rank 2 (pipeline rank 0) are not finite after their sum"},
      {"nan:1:2", {.p = 2}, 1, "on rank 1 (pipeline rank 1) are not finite"},
      {"nan:0:2:forward", {.p = 2, .d = 2}, -1, "the forward pass of its replica (ranks 0, 2), on an unknown rank"},
      {"nan:all:2", {.d = 2}, -1, "2 data-parallel replicas have such values, and which of them had"},
      {"nan:all:2:optimizer",
       {.p = 2},
       1,
       "on rank 1 (pipeline rank 1) are not finite after their sum over ranks, and "
       "were finite before it"},
      {"nan:1:2:forward", {.d = 2}, 1, "the loss of rank 1 is not finite; it arose in its forward pass, in an"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.fault);
    try {
      with_trainers(cut(tiny_config(), c.cut), c.cut.ranks(),
                    [](Trainer& trainer) {
                      for (int step = 0; step < 4; ++step) trainer.queue_step();
                    },
                    {}, {c.fault});
      ADD_FAILURE() << "a step that is not finite";
    } catch (const NumericsError& error) {
      EXPECT_EQ(error.rank, c.rank) << error.what();
      EXPECT_NE(std::string(error.what()).find("step 2: "), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(c.text), std::string::npos) << error.what();
    }
  }
}

// Errors name parameter and element under each sharding: the fault strikes the first element that the rank owns.
TEST(NonFinite, NamesTheElementOfTheShard) {
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"})
    for (const int bad : {0, 3}) {
      std::string expected;
      try {
        with_trainers(cut(tiny_config(), {.d = 4, .strategy = strategy}), 4,
                      [&](Trainer& trainer) {
                        const OwnedShard& shard = trainer.state().flat.owned.front();
                        if (trainer.world().rank() == bad)
                          expected = fmt::format(
                              "gradients of {} on rank {} (pipeline rank 0) are not finite after their sum over ranks, "
                              "and were finite before it; the first, at element {} of {}",
                              shard.param->spec.name, bad, shard.first, shard.param->shape.numel());
                        for (int step = 0; step < 2; ++step) trainer.step();
                      },
                      {}, {fmt::format("nan:{}:2:optimizer", bad)});
        ADD_FAILURE() << "a step that is not finite";
      } catch (const NumericsError& error) {
        EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << strategy << "\n"
                                                                               << error.what() << "\n"
                                                                               << expected;
      }
    }
}

// Everything that a skipped step must leave unchanged.
std::vector<std::byte> state_bits(Trainer& trainer) {
  std::vector<std::byte> bits;
  const auto add = [&](Tensor tensor) {
    if (!tensor) return;
    const std::vector<std::byte> bytes = bytes_of(trainer, tensor);
    bits.insert(bits.end(), bytes.begin(), bytes.end());
  };
  RankState& state = trainer.state();
  for (const OwnedShard& piece : state.flat.owned) add(piece.weight);
  for (const OwnedShard& piece : state.flat.owned) add(state.optimizer->main_weights(piece));
  for (const Optimizer::State& kept : state.optimizer->states()) add(kept.owned);
  return bits;
}

struct SkipCase {
  const char* name;
  const char* fault;  // strikes at step 3
  const char* text;   // part of the warning
  Cut cut;
  const char* dtype = "fp32";
};
void PrintTo(const SkipCase& c, std::ostream* out) { *out << c.name; }

class Skip : public testing::TestWithParam<SkipCase> {};

TEST_P(Skip, LeavesEveryBitOfTheStateAloneOnAllRanks) {
  const SkipCase& c = GetParam();
  // given
  Config config = cut(tiny_config(), c.cut);
  config.overlap.overlap_param_gather = std::string(c.cut.strategy) != "no_shard";
  set_key(config, "precision.dtype", c.dtype);
  config.train.non_finite_policy = StepAction::skip;
  if (c.cut.d == 3) config.batch.global_batch_size = 12;
  with_trainers(config, c.cut.ranks(),
                [&](Trainer& trainer) {
                  trainer.step();
                  EXPECT_FALSE(trainer.step().skipped);
                  const auto before = state_bits(trainer);
                  // when
                  const StepResult result = trainer.step();
                  // then
                  EXPECT_TRUE(result.skipped);
                  EXPECT_NE(result.warning.find(c.text), std::string::npos) << result.warning;
                  EXPECT_NE(result.warning.find("step 3: "), std::string::npos) << result.warning;
                  EXPECT_EQ(state_bits(trainer), before);
                  EXPECT_FALSE(trainer.numbers_ok());
                  EXPECT_EQ(trainer.skipped_steps(), 1);
                  // and the run continues
                  const StepResult next = trainer.step();
                  EXPECT_FALSE(next.skipped);
                  EXPECT_TRUE(std::isfinite(next.loss));
                  EXPECT_EQ(next.step, 4);
                  EXPECT_NE(state_bits(trainer), before);
                  EXPECT_TRUE(trainer.numbers_ok());
                },
                {}, {c.fault});
}

INSTANTIATE_TEST_SUITE_P(
    NonFinite, Skip,
    testing::Values(
        SkipCase{"gradient", "nan:last:3", "(1 NaN, 0 infinite)", {.d = 2}},
        SkipCase{"gradient_of_one_replica", "inf:1:3:optimizer", "on rank 1 (pipeline rank 0)", {.d = 3}},
        SkipCase{
            "loss_of_one_tensor_rank", "nan:1:3:forward", "the loss of rank 1 is not finite", {.t = 2, .p = 2, .d = 2}},
        SkipCase{"sharded_optimizer", "inf:0:3", "(0 NaN, 1 infinite)", {.t = 2, .d = 2, .strategy = "optim"}, "bf16"},
        SkipCase{"sharded_weights", "nan:last:3", "gradients of ", {.p = 2, .d = 2, .strategy = "optim_grads_params"}}),
    [](const auto& info) { return info.param.name; });

TEST(SkippedStep, IsNoUpdateForTheBiasCorrection) {
  // given: Adam's first update moves each weight by the learning rate, whatever the gradient
  Config config = tiny_config();
  config.train.non_finite_policy = StepAction::skip;
  config.optimizer.weight_decay = 0;
  config.optimizer.adam_eps = 1e-20;
  with_trainers(config, 1,
                [](Trainer& trainer) {
                  EXPECT_TRUE(trainer.step().skipped);
                  const auto before = state_bits(trainer);
                  // when
                  const StepResult first = trainer.step();
                  // then
                  const auto after = state_bits(trainer);
                  double largest = 0;
                  const Tensor weight = trainer.state().flat.owned.front().weight;
                  for (int64_t i = 0; i < weight.numel(); ++i) {
                    float was, is;
                    std::memcpy(&was, before.data() + i * 4, 4);
                    std::memcpy(&is, after.data() + i * 4, 4);
                    largest = std::max(largest, std::abs(static_cast<double>(is) - was));
                  }
                  EXPECT_NEAR(largest / first.learning_rate, 1, 1e-3);
                  EXPECT_DOUBLE_EQ(first.learning_rate, learning_rates(trainer.config(), 2, 0).all)
                      << "the schedule counts it";
                },
                {}, {"nan:0:1"});
}

TEST(SkippedSteps, EndTheRunWhenThereAreTooMany) {
  Config config = tiny_config();
  config.train.non_finite_policy = StepAction::skip;
  config.train.max_consecutive_skips = 2;
  std::atomic<int> skipped = 0;
  try {
    with_trainers(config, 2,
                  [&](Trainer& trainer) {
                    for (int i = 0; i < 4; ++i) skipped += trainer.step().skipped;
                  },
                  {}, {"nan:0:1", "nan:1:2", "nan:0:3"});
    FAIL() << "four steps";
  } catch (const NumericsError& error) {
    EXPECT_NE(std::string(error.what()).find("train.max_consecutive_skips (2)"), std::string::npos) << error.what();
  }
  EXPECT_EQ(skipped, 4) << "two on each rank";
}

TEST(ReplicaCheck, NamesTheRankWhoseWeightsHaveAnotherBit) {
  Config config = tiny_config();
  config.train.check_weight_hash_across_dp_replicas_interval = 2;
  config.batch.global_batch_size = 12;
  std::atomic<int> distrusted = 0;
  try {
    with_trainers(config, 3,
                  [&](Trainer& trainer) {
                    for (int i = 0; i < 3; ++i) trainer.step();  // including a comparison at step 2
                    EXPECT_TRUE(trainer.numbers_ok());
                    try {
                      trainer.step();
                    } catch (const NumericsError&) {
                      distrusted += !trainer.numbers_ok();
                      throw;
                    }
                  },
                  {}, {"bitflip:1:3"});
    FAIL() << "replicas that differ";
  } catch (const NumericsError& error) {
    EXPECT_EQ(error.rank, 1);
    EXPECT_NE(std::string(error.what()).find("of rank 1 differs from that of the other 2 of ranks 0, 1, 2"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(distrusted, 3);
}

// All replicated state: weights that differ affect the next step, moments that differ affect all later ones.
TEST(ReplicaCheck, SeesABitOfEachKindOfState) {
  for (const char* dtype : {"fp32", "bf16"})
    for (const std::string kind : {"weight", "main weight", "first moment", "second moment"}) {
      if (kind == "main weight" && std::string(dtype) == "fp32") continue;  // in fp32, the main weight is the weight
      Config config = tiny_config();
      set_key(config, "precision.dtype", dtype);
      config.batch.global_batch_size = 12;
      std::atomic<int> found = 0;
      const auto check = [&](Trainer& trainer) {
        trainer.step();
        trainer.check_replicas();
        const RankState& state = trainer.state();
        const OwnedShard& shard = state.flat.owned.back();
        const Tensor tensor = kind == "weight"        ? shard.weight
                              : kind == "main weight" ? state.optimizer->main_weights(shard)
                                                      : moment_of(*state.optimizer, kind, shard);
        if (trainer.world().rank() == 2)
          static_cast<uint8_t*>(tensor.data)[tensor.bytes() - size_of(tensor.dtype)] ^= 1;
        try {
          trainer.check_replicas();
        } catch (const NumericsError& error) {
          const std::string text = error.what();
          found += error.rank == 2 && text.find(kind) != text.npos && text.find(shard.param->spec.name) != text.npos;
        }
      };
      with_trainers(config, 3, check);
      EXPECT_EQ(found, 3) << dtype << ": " << kind;
    }
}

// The device compares the loss and norm with the same limits however many ranks contribute to them: the same steps are
// spikes under every layout.
TEST(Spikes, AreTheSameStepsUnderEveryLayout) {
  const auto spikes = [](const Cut& how, bool average) {
    Config config = cut(tiny_config(), how);
    config.train.train_iters = 30;
    config.optimizer.lr = 1e-5;  // the loss stays level
    config.optimizer.min_lr = 1e-6;
    config.train.spike_factor = 1.05;
    config.train.spike_policy = StepAction::skip;
    config.overlap.average_in_collective = average;
    std::vector<int64_t> steps;
    with_trainers(config, how.ranks(), [&](Trainer& trainer) {
      for (int i = 0; i < 30; ++i)
        if (const StepResult result = trainer.step(); result.skipped && trainer.world().rank() == 0)
          steps.push_back(result.step);
    });
    return steps;
  };
  const std::vector<int64_t> expected = spikes({}, false);
  EXPECT_GE(expected.size(), 2u);
  EXPECT_LE(expected.size(), 12u);
  EXPECT_EQ(spikes({.p = 2, .d = 2}, false), expected);
  EXPECT_EQ(spikes({.d = 2, .strategy = "optim"}, true), expected);
}

// ---- judging a step

// The verdict on a step with these numbers, if the device has applied the limits.
NumberCheck::Verdict judged(NumberCheck& check, double loss, double grad_norm) {
  const auto limits = check.limits();
  return check.judge({loss, grad_norm, true, loss <= limits.loss && grad_norm <= limits.grad_norm});
}

TEST(NumberCheck, FindsSpikesAgainstTheRunningMedian) {
  using Action = NumberCheck::Action;
  TrainConfig config;
  config.spike_factor = 3;
  config.spike_policy = StepAction::skip;
  NumberCheck check(config);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(judged(check, i == 7 ? 100 : 2, 1).action, Action::take) << "too few yet";
  EXPECT_EQ(judged(check, 2, 1).action, Action::take);
  EXPECT_EQ(judged(check, 5.9, 2.9).action, Action::take);
  const auto loss = judged(check, 6.1, 1), norm = judged(check, 2, 3.1);
  EXPECT_EQ(loss.action, Action::skip);
  EXPECT_EQ(loss.why, "a spike: the loss is 6.1, 3.0 times the median of the last 17 steps");
  EXPECT_EQ(norm.action, Action::skip);
  EXPECT_FALSE(check.last_was_good());
  EXPECT_EQ(check.skipped(), 2);
  // If spikes are only warned about, a level that lasts becomes the new normal.
  config.spike_policy = StepAction::warn;
  NumberCheck warning(config);
  for (int i = 0; i < 64; ++i) judged(warning, 1, 1);
  for (int i = 0; i < 33; ++i) EXPECT_EQ(judged(warning, 10, 1).action, i < 32 ? Action::warn : Action::take) << i;
  EXPECT_EQ(warning.skipped(), 0);
  // Without the check, every step is taken.
  config = {};
  config.check_for_nan_in_loss_and_grad = false;
  EXPECT_EQ(NumberCheck(config).judge({NAN, NAN, false, true}).action, Action::take);
}

TEST(NumberCheck, CountsOnlySkipsInARow) {
  using Action = NumberCheck::Action;
  TrainConfig config;
  config.non_finite_policy = StepAction::skip;
  config.max_consecutive_skips = 2;
  NumberCheck check(config);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(check.judge({NAN, NAN, false, false}).action, Action::skip) << i;
    EXPECT_EQ(check.judge({2, 1, true, true}).action, Action::take) << i;
  }
  EXPECT_EQ(check.skipped(), 5);
}

// Norms fall during training: the limit follows the last steps' median, not the first ones'.
TEST(NumberCheck, ComparesNormsWithThoseOfTheLastSteps) {
  using Action = NumberCheck::Action;
  TrainConfig config;
  config.spike_factor = 3;
  config.spike_policy = StepAction::skip;
  NumberCheck check(config);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(judged(check, 2, 8).action, Action::take);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(judged(check, 2, 1).action, Action::take);
  EXPECT_EQ(judged(check, 2, 2.9).action, Action::take);
  EXPECT_EQ(judged(check, 2, 3.1).action, Action::skip);
}

// ---- learning rate

double rate_at(const OptimizerConfig& optimizer, int64_t step) {
  Config config;
  config.optimizer = optimizer;
  return learning_rates(config, step, 0).all;
}

TEST(LearningRate, WarmsUpThenDecays) {
  OptimizerConfig config{.lr = 1.0, .min_lr = 0.1, .lr_warmup_iters = 10, .lr_decay_iters = 110};
  EXPECT_DOUBLE_EQ(rate_at(config, 1), 0.1);
  EXPECT_DOUBLE_EQ(rate_at(config, 10), 1.0);
  EXPECT_DOUBLE_EQ(rate_at(config, 60), 0.55);  // halfway down the cosine
  EXPECT_DOUBLE_EQ(rate_at(config, 110), 0.1);
  EXPECT_DOUBLE_EQ(rate_at(config, 1000), 0.1);
  config.lr_decay_style = LrDecay::linear;
  EXPECT_DOUBLE_EQ(rate_at(config, 35), 0.775);
  config.lr_decay_style = LrDecay::constant;
  EXPECT_DOUBLE_EQ(rate_at(config, 1000), 1.0);
  config.lr_decay_style = LrDecay::inverse_square_root;
  EXPECT_DOUBLE_EQ(rate_at(config, 40), 0.5);
  EXPECT_DOUBLE_EQ(rate_at(config, 111), 0.1);
  config.lr_decay_style = LrDecay::cosine;
  config.lr_warmup_init = 0.5;
  EXPECT_DOUBLE_EQ(rate_at(config, 5), 0.75);
  EXPECT_DOUBLE_EQ(rate_at(config, 10), 1.0);
}

// Megatron's get_lr ends in max(min_lr, lr).
TEST(LearningRate, OfTheInverseSquareRootIsAtLeastItsMinimum) {
  OptimizerConfig config{.lr = 1.0, .min_lr = 0.4, .lr_warmup_iters = 10, .lr_decay_iters = 110};
  config.lr_decay_style = LrDecay::inverse_square_root;
  EXPECT_DOUBLE_EQ(rate_at(config, 40), 0.5);
  EXPECT_DOUBLE_EQ(rate_at(config, 90), 0.4);  // the root alone: 1/3
  EXPECT_DOUBLE_EQ(rate_at(config, 110), 0.4);
}

// fairseq's inverse square root has a factor of sqrt(0) then.
TEST(LearningRate, WithoutWarmUpBeginsAtItsPeak) {
  OptimizerConfig config{.lr = 1.0, .min_lr = 0.1, .lr_warmup_iters = 0, .lr_decay_iters = 110};
  config.lr_wsd_decay_iters = 40;
  for (const LrDecay style :
       {LrDecay::constant, LrDecay::linear, LrDecay::cosine, LrDecay::inverse_square_root, LrDecay::wsd}) {
    config.lr_decay_style = style;
    EXPECT_GT(rate_at(config, 1), 0.99) << word_of(style);
    EXPECT_LE(rate_at(config, 1), 1.0) << word_of(style);
  }
  config.lr_decay_style = LrDecay::inverse_square_root;
  EXPECT_DOUBLE_EQ(rate_at(config, 4), 0.5);
}

// Megatron's get_lr, with r the fraction of the last lr_wsd_decay_iters.
TEST(LearningRate, OfWsdIsStableAndThenDecays) {
  OptimizerConfig config{.lr = 1.0, .min_lr = 0.2, .lr_warmup_iters = 10, .lr_decay_iters = 110};
  config.lr_decay_style = LrDecay::wsd;
  config.lr_wsd_decay_iters = 40;
  const std::pair<WsdDecay, double> quarters[] = {{WsdDecay::exponential, 2 * std::pow(0.5, 0.25) - 1},
                                                  {WsdDecay::linear, 0.75},
                                                  {WsdDecay::cosine, 0.5 * (1 + std::sqrt(0.5))},
                                                  {WsdDecay::minus_sqrt, 0.5}};
  for (const auto& [style, left] : quarters) {
    config.lr_wsd_decay_style = style;
    EXPECT_DOUBLE_EQ(rate_at(config, 5), 0.5);
    EXPECT_DOUBLE_EQ(rate_at(config, 70), 1.0);
    EXPECT_NEAR(rate_at(config, 80), 0.2 + 0.8 * left, 1e-15);
    EXPECT_NEAR(rate_at(config, 110), 0.2, 1e-15);
  }
}

TEST(LearningRate, CountsSamplesAndHasOneForEmbeddings) {
  Config config;
  config.train.train_samples = 100;
  config.optimizer = {.lr = 1, .min_lr = 0.5, .decoupled_lr = 3, .decoupled_min_lr = 2};
  config.optimizer.lr_warmup_samples = 20;
  config.optimizer.lr_decay_samples = 100;
  EXPECT_DOUBLE_EQ(learning_rates(config, 1, 5).all, 0.25);
  EXPECT_DOUBLE_EQ(learning_rates(config, 1, 5).decoupled, 0.75);
  EXPECT_DOUBLE_EQ(learning_rates(config, 2, 60).all, 0.75);
  EXPECT_DOUBLE_EQ(learning_rates(config, 2, 60).decoupled, 2.5);
}

TEST(WeightDecay, FollowsItsRamp) {
  Config config;
  config.optimizer = {.weight_decay = 0.3, .start_weight_decay = 0.1, .end_weight_decay = 0.5};
  config.train.train_iters = 20;
  EXPECT_EQ(weight_decay(config, 5, 0), 0.3);
  config.optimizer.weight_decay_incr_style = Ramp::linear;
  EXPECT_DOUBLE_EQ(weight_decay(config, 5, 0), 0.2);
  config.optimizer.weight_decay_incr_style = Ramp::cosine;
  EXPECT_DOUBLE_EQ(weight_decay(config, 10, 0), 0.3);
  EXPECT_DOUBLE_EQ(weight_decay(config, 21, 0), 0.5);
  config.train.train_samples = 400;
  EXPECT_DOUBLE_EQ(weight_decay(config, 1, 200), 0.3);
}

// ---- sampling

TEST(Sampling, FollowsTheDistribution) {
  const std::vector<float> logits{0, std::log(2.0f), -100, std::log(5.0f)};  // probabilities 1/8, 2/8, 0, 5/8
  const Sampling plain{.temperature = 1, .top_k = 0};
  EXPECT_EQ(sample_token(logits, plain, 0.0), 3);
  EXPECT_EQ(sample_token(logits, plain, 0.624), 3);
  EXPECT_EQ(sample_token(logits, plain, 0.626), 1);
  EXPECT_EQ(sample_token(logits, plain, 0.876), 0);
  EXPECT_EQ(sample_token(logits, {.temperature = 0, .top_k = 0}, 0.99), 3);
  EXPECT_EQ(sample_token(logits, {.temperature = 1, .top_k = 2}, 0.99), 1);
}

TEST(Sampling, IsTheSameUnderEveryLayout) {
  std::vector<int32_t> reference;
  for (const auto& [t, p] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    with_trainers(cut(tiny_config(), {.t = t, .p = p}), t * p, [&](Trainer& trainer) {
      trainer.step();
      const std::vector<int32_t> prompt{3, 10, 31};
      const auto text = generate(trainer.rank(), prompt, {.tokens = 20, .temperature = 0});
      EXPECT_EQ(text.size(), 20u);
      if (trainer.world().rank() > 0) return;
      if (reference.empty()) reference = text;
      EXPECT_EQ(text, reference);
      EXPECT_THROW(generate(trainer.rank(), {}, {}), ConfigError);
    });
  }
}

// ---- initial weights

TEST(Init, IsNormalAndIndependentOfTheCut) {
  const uint64_t key = initial_key(1, "w");
  double sum = 0, squares = 0;
  const int n = 40'000;
  for (int i = 0; i < n; ++i) {
    const double x = initial_normal(key, i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / n, 0, 4 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 4 * std::sqrt(2.0 / n));
  EXPECT_NE(initial_key(1, "w"), initial_key(2, "w"));
  EXPECT_NE(initial_key(1, "w"), initial_key(1, "v"));

  for (const int partition_dim : {0, 1}) {
    const auto device = create_cpu_device();
    const auto stream = device->create_compute_stream();
    const auto part = [&](int rank, int ranks) {
      ParamList params({{Axis::tp, ranks}}, {{Axis::tp, rank}});
      params.begin_unit(0);
      Param& param = params.declare({.name = "w",
                                     .global_shape = {6, 8},
                                     .placement = {{Axis::tp, partitioned(partition_dim)}},
                                     .init = {Init::normal, 0.5f},
                                     .padding_from = 5});
      std::vector<float> values(static_cast<size_t>(param.shape.numel()));
      param.weight = {values.data(), DType::f32, param.shape};
      for (const Param& param : params.all()) initialize_weight(param, 1, 3, *device, *stream);
      return values;
    };
    const std::vector<float> whole = part(0, 1), left = part(0, 2), right = part(1, 2);
    for (int64_t row = 0; row < 6; ++row)
      for (int64_t column = 0; column < 8; ++column) {
        const size_t at = static_cast<size_t>(row * 8 + column);
        EXPECT_EQ(whole[at], row < 5 ? 0.5f * initial_normal(key, row * 8 + column) : 0);
        const bool second = partition_dim == 0 ? row >= 3 : column >= 4;
        const int64_t r = partition_dim == 0 ? row % 3 : row, c = partition_dim == 0 ? column : column % 4;
        EXPECT_EQ((second ? right : left)[static_cast<size_t>(r * (partition_dim == 0 ? 8 : 4) + c)], whole[at]);
      }
  }
}

// The first rows of the second half of a weight with 2^33 elements: embeddings of the widest models have more than
// 2^32.
TEST(Init, IsThatOfItsIndexBeyond32Bits) {
  constexpr int64_t kFirst = int64_t{1} << 32, kColumns = 8;
  Param param;
  param.spec = ParamSpec{.name = "w", .global_shape = {2 * kFirst / kColumns, kColumns}, .init = {Init::normal, 0.5f}};
  param.shape = {3, kColumns};
  param.partition_dim = 0;
  param.partition_offset = kFirst / kColumns;
  std::vector<float> values(static_cast<size_t>(param.shape.numel()));
  param.weight = {values.data(), DType::f32, param.shape};
  const auto device = create_cpu_device();
  const auto stream = device->create_compute_stream();

  initialize_weight(param, 1, 2, *device, *stream);

  const uint64_t key = initial_key(1, "w");
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(values[i], 0.5f * initial_normal(key, kFirst + static_cast<int64_t>(i))) << i;
}

// ---- the split of layers into stages

TEST(LayerSplit, CutsEvenlyOrAsAsked) {
  using Layers = std::vector<int64_t>;
  EXPECT_EQ(split_layers({.num_layers = 5, .stages = 1}), Layers{5});
  EXPECT_EQ(split_layers({.num_layers = 8, .stages = 4}), (Layers{2, 2, 2, 2}));
  EXPECT_EQ(split_layers({.num_layers = 8, .stages = 4, .first_layers = 1, .last_layers = 3}), (Layers{1, 2, 2, 3}));
  EXPECT_EQ(split_layers({.num_layers = 10, .stages = 4, .account_for_embedding = true, .account_for_loss = true}),
            (Layers{2, 3, 3, 2}));
  // Megatron's rule: a rank's layers are split over its chunks
  EXPECT_EQ(split_layers({.num_layers = 12, .stages = 8, .chunks = 2, .first_layers = 2, .last_layers = 2}),
            (Layers{1, 2, 2, 1, 1, 2, 2, 1}));
}

TEST(LayerSplit, SaysWhatDisagrees) {
  const auto message = [](const LayerSplit& split) {
    try {
      split_layers(split);
    } catch (const KeyError& error) {
      return error.key + ": " + error.what();
    }
    return std::string("no error");
  };
  const std::string first = "parallel.decoder_first_pipeline_num_layers: ",
                    last = "parallel.decoder_last_pipeline_num_layers: ";
  EXPECT_TRUE(message({.num_layers = 10, .stages = 4}).starts_with("model.num_layers: 10 cannot be split evenly"));
  EXPECT_NE(message({.num_layers = 10, .stages = 4}).find("8 or 12 would"), std::string::npos);
  EXPECT_EQ(message({.num_layers = 4, .stages = 2, .first_layers = 3, .last_layers = 3}),
            first + "the first and last of 2 pipeline stages hold 3 and 3 layers, but the model has 4");
  EXPECT_EQ(message({.num_layers = 7, .stages = 4, .chunks = 2, .last_layers = 3}),
            last + "3 is not a multiple of the 2 chunks over which its pipeline rank divides its layers");
}

}  // namespace
}  // namespace trivet::test
