// Random layouts: all switches of a run are drawn together, and the numbers must still be those of one rank. The matrix
// of layout_test.cc has one row per switch; these cover pairs of them, including randomly ordered schedules.
// TRIVET_RANDOM_LAYOUTS=10000 draws 10,000 layouts instead of a few dozen.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <utility>

#include "engine/config/fields.h"
#include "engine/train/checkpointing.h"
#include "tests/support/mirrored_ops.h"
#include "tests/support/random_runs.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

constexpr int kRandomSteps = std::min(kMatrixSteps, 3);

const char* wanted() { return std::getenv("TRIVET_RANDOM_LAYOUTS"); }

void expect_within(double tolerance, const Curve& curve, const Curve& reference, const char* what) {
  for (size_t i = 0; i < reference.losses.size(); ++i)
    EXPECT_NEAR(curve.losses[i] / reference.losses[i], 1, tolerance) << what << ", step " << i + 1;
}

bool uses_ring(const OverlapConfig& overlap) {
  return overlap.tp_comm_overlap == TensorOverlap::ring || overlap.tp_comm_overlap_qkv == TensorOverlap::ring ||
         overlap.tp_comm_overlap_fc2 == TensorOverlap::ring;
}

// Returns the checkpoint's path.
std::string save_after_a_step(Config config, int ranks, const Trainer::Options& options, const std::string& run_dir) {
  config.train.run_dir = run_dir;
  config.checkpoint.save_interval = 1;
  std::filesystem::create_directories(run_dir);
  const Layout layout = resolved(config, ranks).layout;
  with_trainers(
      config, ranks,
      [&](Trainer& trainer) {
        Checkpointing checkpointing(trainer.config(), layout, trainer, nullptr, {}, now_ns());
        trainer.step();
        checkpointing.after_step({});
      },
      options);
  return CheckpointStore(run_dir + "/checkpoints").path_of(1);
}

// Returns the losses and norms of the remaining steps and the evaluation after them. Checks that each rank uses the
// planned memory.
std::vector<double> go_on(const std::string& checkpoint, const Config& config, int ranks,
                          const Trainer::Options& options) {
  const Layout layout = resolved(config, ranks).layout;
  std::vector<double> losses;
  with_trainers(
      config, ranks,
      [&](Trainer& trainer) {
        Checkpointing checkpointing(trainer.config(), layout, trainer, nullptr, {}, now_ns());
        checkpointing.resume({checkpoint}, false);
        for (int i = 1; i < kRandomSteps; ++i) {
          const StepResult step = trainer.step();
          if (trainer.world().rank() == 0) losses.insert(losses.end(), {step.loss, step.grad_norm});
          std::vector<Span> spans;
          for (TraceRow& row : trainer.trace().rows()) row.take(spans);
          if (i > 1) EXPECT_EQ(trainer.trace().take_lost(), 0) << "a step with more spans than are planned";
          else trainer.trace().take_lost();  // including spans of the resume
        }
        const double validation_loss = evaluate(trainer, 3);
        if (trainer.world().rank() == 0) losses.push_back(validation_loss);
        EXPECT_EQ(trainer.state().memory().items, plan_memory(trainer.config(), layout, trainer.mesh().at).items);
      },
      options);
  return losses;
}

int how_many() { return wanted() ? std::atoi(wanted()) : kMatrixStride == 1 ? 40 : 8; }

// The draw of a case: from a set that covers pairs or, with TRIVET_RANDOM_LAYOUTS, the case's own number.
int number_of(int at) {
  static const CoveringDraws draws = covering_draws(wanted() ? 0 : how_many());
  return wanted() ? at : draws.numbers[static_cast<size_t>(at)];
}

class RandomLayout : public testing::TestWithParam<int> {};

TEST_P(RandomLayout, HasTheLossesOfOneRank) {
  const TempDir dir;
  const Runs runs = draw_runs(number_of(GetParam()), dir / "");
  SCOPED_TRACE(runs.text());
  const int plain_p = runs.plain.parallel.pipeline_model_parallel_size;

  const Curve one = train_on_threads(runs.one, 1, kRandomSteps);
  const Curve plain =
      runs.same_order ? one : train_on_threads(runs.plain, runs.t * runs.c * plain_p * runs.d, kRandomSteps);
  Trainer::Options options{.poison = true};
  if (runs.on_split_devices) options.make_backend = make_split_backend;
  const Curve full = train_on_threads(runs.full, runs.ranks(), kRandomSteps, options, runs.ahead);

  if (runs.full.precision.dtype == DType::f32) expect_near(plain, one, "plain against one rank");
  else expect_within(5e-3, plain, one, "plain against one rank");
  // Sums in a ring are rounded on each rank.
  if (runs.full.precision.dtype == DType::bf16 && uses_ring(runs.full.overlap))
    expect_within(5e-3, full, plain, "full");
  else expect_equal(full, plain, "full against plain");

  // Saved after its first step and resumed: bit for bit under the same layout, within a tolerance on one rank.
  const std::string saved = save_after_a_step(runs.full, runs.ranks(), options, dir / "run");
  std::vector<double> rest;
  for (size_t i = 1; i < full.losses.size(); ++i) rest.insert(rest.end(), {full.losses[i], full.norms[i]});
  rest.push_back(full.validation_loss);
  EXPECT_EQ(go_on(saved, runs.full, runs.ranks(), options), rest);
  const std::vector<double> alone = go_on(saved, runs.one, 1, {});
  ASSERT_EQ(alone.size(), rest.size());
  const double tolerance = runs.full.precision.dtype == DType::f32 ? 2e-5 : 5e-3;
  for (size_t i = 0; i < rest.size(); ++i) {
    const bool norm = i % 2 == 1;
    EXPECT_NEAR(alone[i] / rest[i], 1, norm ? 10 * tolerance : tolerance) << "resumed on one rank, " << i;
  }
}

// An invalid switch is refused, naming its key, before anything is allocated; what is not refused runs correctly.
TEST_P(RandomLayout, IsRefusedOrRunsWithAnyChange) {
  const TempDir dir;
  Runs runs = draw_runs(number_of(GetParam()), dir / "");
  Draw draw(GetParam());
  if (!runs.schedule_text.empty() && draw.one_in(2)) exchange_two_ops(draw, runs);
  else
    for (int changes = draw.of(1, 3); changes > 0; --changes) change_a_key(draw, runs.full);
  SCOPED_TRACE(runs.text());
  Trainer::Options options{.poison = true};
  if (runs.on_split_devices) options.make_backend = make_split_backend;
  try {
    const Curve curve = train_on_threads(runs.full, runs.ranks(), 2, options, runs.ahead);

    Config one = tiny_config();
    one.model = runs.full.model;
    one.optimizer = runs.full.optimizer;
    one.precision = runs.full.precision;
    one.precision.fp8_param_gather = false;
    one.data.reset_position_ids = runs.full.data.reset_position_ids;
    one.data.reset_attention_mask = runs.full.data.reset_attention_mask;
    one.data.eod_mask_loss = runs.full.data.eod_mask_loss;
    one.train = runs.full.train;
    one.batch = resolved(runs.full, runs.ranks()).config.batch;
    expect_within(runs.full.precision.dtype == DType::f32 ? 2e-5 : 5e-3, curve, train_on_threads(one, 1, 2),
                  "one rank");
  } catch (const ConfigError& refusal) {
    EXPECT_TRUE(std::ranges::any_of(fields(), [&](const Field& field) {
      return std::string_view(refusal.what()).find(field.name) != std::string_view::npos;
    })) << refusal.what();
  }
}

// On GPUs: within the layout tolerance of the CPU's result, and bit for bit in a second run.
TEST_P(RandomLayout, IsTheSameOnGpus) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  if (gpu_is_emulated() && !wanted())
    GTEST_SKIP() << "takes long on an emulated GPU: TRIVET_RANDOM_LAYOUTS was not set";
  const TempDir dir;
  Runs runs = draw_runs(number_of(GetParam()), dir / "");
  SCOPED_TRACE(runs.text());
  Config& config = runs.full;
  config.comm = {};
  const CudaGraphs graphs = std::exchange(config.device.cuda_graph_impl, CudaGraphs::none);
  config.device.kind = DeviceKind::cpu;
  const Curve cpu = train_on_threads(config, runs.ranks(), 2);
  config.device.kind = DeviceKind::cuda;
  config.device.cuda_graph_impl = graphs;
  config.comm.backend = CommBackend::staged;
  config.train.deterministic_mode = true;
  const auto streams = [&] {  // per GPU, at most
    return gpu_share_of(config, runs.ranks()).streams * ((runs.ranks() - 1) / cuda_device_count() + 1);
  };
  if (streams() > kMostStreams) config.overlap.collectives_in_flight = 1;
  if (streams() > kMostStreams) GTEST_SKIP() << streams() << " streams are more than a GPU has queues";

  const Curve gpu = train_on_threads(config, runs.ranks(), 2, {.poison = true}, runs.ahead);

  expect_within(config.precision.dtype == DType::f32 ? 2e-5 : 5e-3, gpu, cpu, "the GPU against the CPU");
  expect_equal(train_on_threads(config, runs.ranks(), 2), gpu, "again");
}

// The cases above cover nearly all pairs of choices that draws can contain.
TEST(RandomLayouts, CoverPairsOfSwitches) {
  const CoveringDraws forty = covering_draws(40);
  std::printf("%ld of %ld pairs of choices are covered\n", forty.covered, forty.pairs);
  EXPECT_GT(static_cast<double>(forty.covered) / static_cast<double>(forty.pairs), 0.88)
      << forty.covered << " of " << forty.pairs;
}

INSTANTIATE_TEST_SUITE_P(Drawn, RandomLayout, testing::Range(0, how_many()));

}  // namespace
}  // namespace trivet::test
