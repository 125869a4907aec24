// device.cuda_graph_impl: work that micro-batches repeat is launched as graphs, and no number changes. Runs on the
// tests' stand-in for a GPU (tests/support/split_device.h), whose graphs replay the arguments of their capture, and on
// a GPU if there is one.
#include <gtest/gtest.h>

#include "engine/checkpoint/state_tensors.h"
#include "tests/support/mirrored_ops.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

void drop(Config& config) {
  config.model.hidden_dropout = 0.1;
  config.model.attention_dropout = 0.2;
}

Config with_graphs(Config config) {
  config.device.cuda_graph_impl = CudaGraphs::local;
  config.device.kind.reset();  // the tests' device
  return config;
}

// Everything that rank 0 observes in a run that repeatedly trains, evaluates and generates.
struct Seen {
  std::vector<double> losses, norms;
  std::vector<float> logits;
  std::vector<std::vector<std::byte>> weights;
  GraphOps::Counts counts;
};

struct Rounds {
  int rounds = 2, steps = 2;
  int64_t evaluated = 2;
};

Seen run(const Config& config, int ranks, const Trainer::Options& options, const Rounds& how = {}) {
  Seen seen;
  with_trainers(
      config, ranks,
      [&](Trainer& trainer) {
        Seen mine;
        const auto add = [&](const StepResult& result) {
          mine.losses.push_back(result.loss);
          mine.norms.push_back(result.grad_norm);
        };
        const std::vector<int32_t> context{3, 1, 4, 1, 5};
        for (int round = 0; round < how.rounds; ++round) {
          for (int i = 0; i < how.steps; ++i)
            if (const auto earlier = trainer.queue_step()) add(*earlier);
          add(trainer.finish_step());
          mine.losses.push_back(evaluate(trainer, how.evaluated));
          mine.logits = trainer.rank().next_token_logits(context);
        }
        trainer.data_parallel().weights.finish();
        for (const Param& param : trainer.state().params.all())
          if (param.weight) mine.weights.push_back(bytes_of(trainer, param.weight));
        if (trainer.rank().graphs) mine.counts = trainer.rank().graphs->counts();
        if (trainer.world().rank() == 0) seen = std::move(mine);
      },
      options);
  return seen;
}

void expect_same(const Seen& found, const Seen& expected) {
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
  EXPECT_EQ(found.logits, expected.logits);
  EXPECT_EQ(found.weights, expected.weights);
}

class Graphs : public testing::TestWithParam<LayoutCase> {};

TEST_P(Graphs, ChangeNoNumber) {
  const Config config = config_of(GetParam());
  const Seen expected = run(config, GetParam().ranks(), {});

  const Seen found = run(with_graphs(config), GetParam().ranks(), {.poison = true, .make_backend = make_split_backend});

  expect_same(found, expected);
  EXPECT_GT(found.counts.replayed, found.counts.calls / 3) << found.counts.graphs << " graphs";
}

TEST_P(Graphs, ChangeNoNumberOfAGpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const std::string name = GetParam().name;
  if (gpu_is_emulated() && name != "bf16" && name != "optim_grads_params" && name != "interleaved")
    GTEST_SKIP() << "takes long on an emulated GPU";
  // Small, and few: the GPU may be emulated.
  Config config = config_of(GetParam());
  config.model.hidden_size = 16;
  config.model.ffn_hidden_size = 32;
  config.model.num_attention_heads = 2;
  if (config.model.num_query_groups) config.model.num_query_groups = 2;
  config.model.seq_length = 8;
  config.batch.micro_batch_size = 1;
  config.batch.global_batch_size = 2 * GetParam().cut.d;
  config.device.kind = DeviceKind::cuda;
  config.comm.backend = CommBackend::staged;
  config.train.deterministic_mode = true;
  const Rounds rounds{.rounds = 1, .steps = 3, .evaluated = 1};
  const Seen expected = run(config, GetParam().ranks(), {}, rounds);

  const Seen found = run(with_graphs(config), GetParam().ranks(), {}, rounds);

  expect_same(found, expected);
  EXPECT_GT(found.counts.replayed, found.counts.calls / 4) << found.counts.graphs << " graphs";
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Graphs,
    testing::Values(LayoutCase{"one"},
                    LayoutCase{"bf16",
                               {},
                               [](Config& c) {
                                 c.model.cross_entropy_chunk_rows = 5;
                                 c.precision.dtype = DType::bf16;
                                 drop(c);
                               }},
                    LayoutCase{"llama", {.t = 2, .p = 2}, as_llama},
                    LayoutCase{"tensor_ring",
                               {.t = 2, .sequence_parallel = true},
                               [](Config& c) { c.overlap.tp_comm_overlap = TensorOverlap::ring; }},
                    LayoutCase{"optim",
                               {.d = 2, .strategy = "optim"},
                               [](Config& c) {
                                 c.parallel.bucket_size = 5000;
                                 overlap_data_parallel(c);
                               }},
                    LayoutCase{"optim_grads",
                               {.d = 2, .strategy = "optim_grads"},
                               [](Config& c) {
                                 c.overlap.overlap_grad_reduce = true;
                                 c.model.recompute_granularity = RecomputeGranularity::full;
                                 c.model.recompute_method = RecomputeMethod::uniform;
                                 c.model.recompute_num_layers = 2;
                                 drop(c);
                               }},
                    LayoutCase{"optim_grads_params", {.d = 2, .strategy = "optim_grads_params"}, overlap_data_parallel},
                    LayoutCase{"interleaved",
                               {.p = 2, .schedule = "interleaved", .v = 2},
                               [](Config& c) { c.overlap.defer_embedding_wgrad_compute = true; }},
                    LayoutCase{"zero_bubble",
                               {.p = 2, .schedule = "zb-h1"},
                               [](Config& c) {
                                 c.model.recompute_granularity = RecomputeGranularity::selective;
                                 drop(c);
                               }}),
    [](const auto& info) { return info.param.name; });

// ---- how often, and what the trace shows

TEST(GraphsOfOneRank, AreOneADirection) {
  const Seen seen = run(with_graphs(tiny_config()), 1, {.make_backend = make_split_backend});
  // The forward pass, the backward passes that write gradients and that add to them, and the forward pass with the
  // loss scale of the evaluation. The passes of generation are queued call by call: no two are alike.
  EXPECT_EQ(seen.counts.graphs, 4);
  // 4 steps of 4 micro-batches, and 2 evaluations of 2 batches of 4: every use of a graph but its first.
  EXPECT_EQ(seen.counts.launches, (4 * 4 - 1) + (4 - 1) + (4 * 3 - 1) + (2 * 2 * 4 - 1));
}

TEST(GraphsOfOneRank, AreOneSpanInTheirPhase) {
  std::vector<Span> spans;
  with_trainers(with_graphs(tiny_config()), 1,
                [&](Trainer& trainer) {
                  TraceRow& row = trainer.trace().rows().front();
                  EXPECT_EQ(row.name(), "compute");
                  for (int i = 0; i < 2; ++i) {
                    trainer.step();
                    row.take(spans);
                  }
                },
                {.make_backend = make_split_backend});
  int phases = 0;
  for (const Span& phase : spans) {
    const std::string name = phase.info.name;
    if (name != "F" && name != "B") continue;
    ++phases;
    int graphs = 0, others = 0;
    for (const Span& span : spans) {
      if (span.start_ns < phase.start_ns || span.end_ns > phase.end_ns) continue;
      if (span.info.name == std::string("graph")) ++graphs;
      else if (span.info.category == Category::compute) ++others;
    }
    EXPECT_EQ(graphs, 1) << name << " " << phase.info.label.microbatch;
    EXPECT_EQ(others, 0) << name << " " << phase.info.label.microbatch;
  }
  EXPECT_EQ(phases, 8);
}

// ---- loading a checkpoint into a trainer that has graphs

TEST(GraphsThatAreThere, TakeAResumedStateAsItIs) {
  Config config = with_graphs(tiny_config());
  config.parallel.data_parallel_sharding_strategy = Sharding::optim;
  config.overlap.overlap_param_gather = true;
  const auto use = [](Trainer& trainer) {
    const auto two_losses = [&] {
      const double first = trainer.step().loss;
      return std::pair(first, trainer.step().loss);
    };
    two_losses();
    std::vector<std::vector<std::byte>> saved;
    for (const StateTensor& tensor : state_tensors(trainer.state().flat, *trainer.state().optimizer))
      saved.push_back(bytes_of(trainer, tensor.data));
    const auto expected = two_losses();
    const int64_t graphs = trainer.rank().graphs->counts().graphs;

    trainer.data_parallel().weights.finish();  // the gather reads what is overwritten below
    size_t i = 0;
    for (const StateTensor& tensor : state_tensors(trainer.state().flat, *trainer.state().optimizer))
      trainer.device().copy_to_device(saved[i++].data(), tensor.data, *trainer.rank().compute);
    trainer.resume({.step = 2, .consumed_samples = 16});

    EXPECT_EQ(two_losses(), expected);
    EXPECT_GT(graphs, 0);
    EXPECT_EQ(trainer.rank().graphs->counts().graphs, graphs);
  };
  with_trainers(config, 2, use, {.make_backend = make_split_backend});
}

// ---- where graphs are impossible

std::string refusal(const Config& config, const Trainer::Options& options) {
  try {
    run(config, 1, options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(GraphsThatCannotBe, SayWhy) {
  Config config = with_graphs(tiny_config());
  config.device.kind = DeviceKind::cpu;
  EXPECT_NE(refusal(config, {}).find("device.cuda_graph_impl: local has no effect where a run computes on CPUs"),
            std::string::npos);
  config.device.kind.reset();
  const auto cpu_backend = [](const Config&, Communicator&, int threads) {
    Backend backend;
    backend.device = create_cpu_device();
    backend.ops = create_cpu_ops(threads);
    return backend;
  };
  EXPECT_NE(refusal(config, {.make_backend = cpu_backend}).find("has no graphs; expected none"), std::string::npos);
}

}  // namespace
}  // namespace trivet::test
