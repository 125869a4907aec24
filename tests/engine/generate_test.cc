// Generation: the key-value cache changes no bit of the logits under any layout, and a token costs one position.
#include "engine/train/generate.h"

#include <gtest/gtest.h>

#include "engine/train/backend.h"
#include "engine/train/inference.h"
#include "parallel/comm/world.h"
#include "tests/support/training.h"

namespace trivet {
namespace {

using test::Cut;
using test::LayoutCase;

const std::vector<int32_t> kText{3, 10, 31, 4, 4, 60, 0, 17, 22, 9, 41, 5, 2, 33, 8, 50};  // as long as the sequences

class KeyValueCache : public testing::TestWithParam<LayoutCase> {};

TEST_P(KeyValueCache, ChangesNoBit) {
  const auto on_a_trained_model = [](Trainer& trainer) {
    // given: a model, and its logits after each token of a text, each computed from all tokens before
    trainer.step();
    Rank& rank = trainer.rank();
    std::vector<std::vector<float>> whole;
    for (size_t n = 1; n <= kText.size(); ++n) whole.push_back(rank.next_token_logits(std::span(kText).first(n)));
    // when: the tokens arrive one by one, or several at a time; then: the logits have the same bits
    for (const size_t step : {1, 2, 5}) {
      size_t known = 0;
      for (size_t n = step; n <= kText.size(); n += step) {
        const auto logits = rank.next_token_logits(std::span(kText).first(n), static_cast<int64_t>(known));
        EXPECT_EQ(logits, whole[n - 1]) << n << " tokens, " << known << " known";
        known = n;
      }
    }
  };
  const Config config = test::config_of(GetParam());
  test::with_trainers(config, GetParam().ranks(), on_a_trained_model);
}

const auto bf16_precision = [](Config& c) { c.precision.dtype = DType::bf16; };
INSTANTIATE_TEST_SUITE_P(
    Layouts, KeyValueCache,
    testing::Values(LayoutCase{"one"}, LayoutCase{"bf16", {}, bf16_precision}, LayoutCase{"tensor", {.t = 2}},
                    LayoutCase{"sequence", {.t = 2, .sequence_parallel = true}},
                    LayoutCase{"sequence_of_four_bf16", {.t = 4, .sequence_parallel = true}, bf16_precision},
                    LayoutCase{"ring",
                               {.t = 2, .sequence_parallel = true},
                               [](Config& c) { c.overlap.tp_comm_overlap = TensorOverlap::ring; }},
                    LayoutCase{"llama", {.t = 2, .p = 2, .sequence_parallel = true}, test::as_llama},
                    LayoutCase{"llama_bf16",
                               {},
                               [](Config& c) {
                                 test::as_llama(c);
                                 bf16_precision(c);
                               }},
                    LayoutCase{"fp8",
                               {.t = 2, .sequence_parallel = true},
                               [](Config& c) {
                                 bf16_precision(c);
                                 c.precision.fp8 = Fp8::hybrid;
                               }},
                    LayoutCase{"qwen3", {.t = 2, .p = 2, .sequence_parallel = true}, test::as_qwen3},
                    LayoutCase{"qwen3_as_generated",
                               {},
                               [](Config& c) {
                                 test::as_qwen3(c);
                                 test::set_key(c, "model.normalization", "LayerNorm");
                                 test::set_key(c, "model.recompute_granularity", "selective");
                                 test::set_key(c, "model.recompute_modules", "core_attn,layernorm,mlp");
                               }},
                    LayoutCase{"pipeline", {.p = 2}},
                    LayoutCase{"interleaved", {.p = 2, .schedule = "interleaved", .v = 2}},
                    LayoutCase{"v_shaped", {.p = 2, .schedule = "zb-v"}},
                    LayoutCase{"all",
                               {.t = 2, .p = 2, .d = 2, .sequence_parallel = true, .strategy = "optim_grads_params"}},
                    LayoutCase{"recomputed",
                               {.p = 2},
                               [](Config& c) {  // has no cache: computes all tokens each time
                                 c.model.recompute_granularity = RecomputeGranularity::full;
                                 c.model.recompute_method = RecomputeMethod::uniform;
                                 c.model.recompute_num_layers = 1;
                               }}),
    [](const auto& tested) { return tested.param.name; });

// This is why the number of threads may be chosen by timing.
TEST(Threads, ChangeNoBitOfTheLogits) {
  for (const bool llama : {false, true})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      std::vector<std::vector<float>> logits;  // after the whole text in one call, and after its last token
      for (const int threads : {1, 2, 3, 5}) {
        Config config = test::tiny_model(llama);
        config.precision.dtype = dtype;
        config.device.threads_per_rank = threads;
        test::with_trainers(config, 1, [&](Trainer& trainer) {
          logits.push_back(trainer.rank().next_token_logits(kText));
          logits.push_back(trainer.rank().next_token_logits(kText, static_cast<int64_t>(kText.size()) - 1));
        });
      }
      for (size_t i = 1; i < logits.size(); ++i) EXPECT_EQ(logits[i], logits[0]) << name_of(dtype) << ", " << i;
    }
}

// Ranks share the cores with their own node's ranks, not with all of the job's.
TEST(Threads, AreSharedByTheRanksOfTheNode) {
  run_thread_ranks(1, [](Communicator& world) {
    const int cores = threads_of_rank(Config{}, world);
    setenv("OMPI_COMM_WORLD_SIZE", "1000000", 1);
    for (const char* node : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"}) {
      setenv(node, "2", 1);
      EXPECT_EQ(threads_of_rank(Config{}, world), std::max(1, cores / 2)) << node;
      setenv(node, "1", 1);
      EXPECT_EQ(threads_of_rank(Config{}, world), cores) << node;
      unsetenv(node);
    }
    unsetenv("OMPI_COMM_WORLD_SIZE");
  });
}

TEST(Threads, FollowFromTheWorkOfAToken) {
  run_thread_ranks(1, [](Communicator& world) {
    const int cores = threads_of_rank(Config{}, world);
    const auto threads = [&](int64_t hidden, int tensor, int given) {
      Config config = test::tiny_model(false);
      config.model.hidden_size = hidden;
      config.model.ffn_hidden_size = 4 * hidden;
      config.parallel.tensor_model_parallel_size = tensor;
      config.device.threads_per_rank = given;
      return threads_for_tokens(config, world);
    };
    EXPECT_EQ(threads(256, 1, 0), 1);  // the demo's model
    EXPECT_EQ(threads(512, 4, 0), 1);
    EXPECT_EQ(threads(768, 1, 0), std::min(cores, 9));
    EXPECT_EQ(threads(16384, 1, 0), cores);
    EXPECT_EQ(threads(256, 1, 3), 3);
  });
}

TEST(KeyValueCache, ChangesNoBitOnADeviceOfItsOwn) {
  std::vector<int32_t> texts[2];
  for (const bool split : {false, true})
    test::with_trainers(test::cut(test::tiny_config(), {.t = 2, .p = 2, .sequence_parallel = true}), 4,
                        [&](Trainer& trainer) {
                          trainer.step();
                          const auto text =
                              generate(trainer.rank(), std::span(kText).first(3), {.tokens = 30, .temperature = 1});
                          if (trainer.world().rank() == 0) texts[split] = text;
                        },
                        {.make_backend = split ? MakeBackend(test::make_split_backend) : MakeBackend(make_backend)});
  EXPECT_EQ(texts[0].size(), 30u);
  EXPECT_EQ(texts[0], texts[1]);
}

// After an end-of-document token, a new document begins, which is never empty; other prompts may already be complete.
TEST(Generate, ANewDocumentIsNotEmpty) {
  test::with_trainers(test::resolved(test::tiny_config(), 1).config, 1, [&](Trainer& trainer) {
    const auto empty_texts = [&](int32_t last) {
      int empty = 0;
      for (uint64_t seed = 0; seed < 500; ++seed) {
        const Sampling sampling{.tokens = 1, .temperature = 1, .top_k = 0, .seed = seed, .stop_token = 5};
        empty += generate(trainer.rank(), std::span(&last, 1), sampling).empty();
      }
      return empty;
    };
    EXPECT_EQ(empty_texts(5), 0);
    EXPECT_GT(empty_texts(6), 0);
  });
}

// Ops that record the rows of every GEMM.
class RowCounter : public Ops {
 public:
  RowCounter(std::unique_ptr<Ops> ops, std::vector<int64_t>& rows) : ops_(std::move(ops)), rows_(rows) {}
  void run(const AnyOp& op, Stream& stream) override {
    if (const auto* matmul = std::get_if<op::Matmul>(&op)) rows_.push_back(matmul->c.rows());
    ops_->run(op, stream);
  }

 private:
  std::unique_ptr<Ops> ops_;
  std::vector<int64_t>& rows_;
};

TEST(Generate, DrawsOnlyTokensOfTheTokenizer) {
  test::with_trainers(test::resolved(test::tiny_config(), 1).config, 1, [&](Trainer& trainer) {
    const std::vector<int32_t> prompt = {7};
    const Sampling sampling{.tokens = 200, .temperature = 5, .top_k = 0, .vocab = 6};
    const auto text = generate(trainer.rank(), prompt, sampling);
    EXPECT_EQ(*std::ranges::max_element(text), 5);
  });
}

// A text that outgrows the context continues after its last half, recomputed from scratch: as if without a cache.
TEST(Generate, BehindTheContextIsThatOfTheLastHalfAlone) {
  Config config = test::tiny_config();
  config.model.init_method_std = 0.5;  // makes attention matter
  test::with_trainers(test::resolved(config, 1).config, 1, [&](Trainer& trainer) {
    Rank& rank = trainer.rank();
    const size_t most = kText.size();  // the sequence length
    const auto text = generate(rank, std::span(kText).first(3), {.tokens = 40, .temperature = 0});
    std::vector<int32_t> all(kText.begin(), kText.begin() + 3);
    size_t seen = all.size();
    for (const int32_t token : text) {
      if (seen > most) seen = most / 2;
      const std::vector<float> logits = rank.next_token_logits(std::span<const int32_t>(all).last(seen++));
      EXPECT_EQ(token, std::ranges::max_element(logits) - logits.begin()) << all.size();
      all.push_back(token);
    }
  });
}

TEST(KeyValueCache, ATokenCostsOnePosition) {
  std::vector<int64_t> rows;
  const MakeBackend counting = [&](const Config& config, Communicator& world, int threads) {
    Backend backend = make_backend(config, world, threads);
    backend.ops = std::make_unique<RowCounter>(std::move(backend.ops), rows);
    return backend;
  };
  const Config config = test::resolved(test::tiny_config(), 1).config;
  test::with_trainers(config, 1,
                      [&](Trainer& trainer) {
                        const int64_t b = config.batch.micro_batch_size;
                        rows.clear();
                        trainer.rank().next_token_logits(std::span(kText).first(9));
                        // Four GEMMs per layer, and the head's for the one token that is read.
                        std::vector<int64_t> expected(4 * 4, 9 * b);
                        expected.push_back(1);
                        EXPECT_EQ(rows, expected);
                        rows.clear();
                        trainer.rank().next_token_logits(std::span(kText).first(10), 9);
                        std::fill(expected.begin(), expected.end() - 1, b);
                        EXPECT_EQ(rows, expected);
                      },
                      {.make_backend = counting});
}

}  // namespace
}  // namespace trivet
