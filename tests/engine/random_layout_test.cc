// Layouts that nobody thought of: the switches of a run are drawn, all at once, and the numbers must still be those of
// one rank. Where the matrix of layout_test.cc has a row for each switch, this has their combinations, schedules of
// random order among them. TRIVET_RANDOM_LAYOUTS=10000 draws so many in place of a few dozen.
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>

#include "engine/config/fields.h"
#include "engine/train/checkpointing.h"
#include "parallel/pipeline/check.h"
#include "tests/support/random_schedule.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

constexpr int kSteps = std::min(kMatrixSteps, 3);

class Draw {
 public:
  explicit Draw(int number) : random_(static_cast<uint64_t>(number)) {}

  int of(int low, int high) { return draw(random_, low, high); }
  bool one_in(int n) { return of(1, n) == 1; }
  template <class T>
  T among(std::initializer_list<T> values) {
    return values.begin()[of(0, static_cast<int>(values.size()) - 1)];
  }
  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_;
};

// A run three times: on one rank; cut over tensor- and data-parallel ranks with nothing else switched on; and whole.
struct Runs {
  Config one, plain, full;
  int t = 1, p = 1, d = 1;
  bool same_order = false;  // `plain` adds as `one` does: it is that
  bool on_split_devices = false, ahead = false;
  std::string schedule_text;
};

std::string words_of(const Config& config) {
  const Config defaults = tiny_config();
  std::string words;
  for (const Field& field : fields())
    if (format_field(field, config) != format_field(field, defaults))
      words += fmt::format(" {}={}", field.name, format_field(field, config));
  return words;
}

// What is trained, which all three runs share.
Config draw_model(Draw& draw, const Runs& runs, bool sequence_parallel) {
  Config config = tiny_config();
  ModelConfig& model = config.model;
  model.num_attention_heads = runs.t * draw.of(1, 2);
  model.hidden_size = model.num_attention_heads * draw.among({4, 6, 8, 16});
  model.ffn_hidden_size = runs.t * draw.of(1, 24);
  model.seq_length = sequence_parallel ? runs.t * draw.of(1, 6) : draw.of(2, 20);
  model.vocab_size = draw.of(61, 70);
  model.make_vocab_size_divisible_by = draw.among({1, 8, 32});
  model.untie_embeddings_and_output_weights = draw.one_in(2);
  model.scale_output_layer_init = draw.one_in(2);
  if (draw.one_in(3)) model.hidden_dropout = 0.1;
  if (draw.one_in(3)) model.attention_dropout = 0.2;
  config.optimizer.decay_norms_and_biases = draw.one_in(3);
  config.optimizer.clip_grad = draw.among({0.0, 0.5, 1.0});
  config.optimizer.lr_decay_style = draw.among({"cosine", "linear"});
  config.precision.dtype = draw.one_in(5) ? "bf16" : "fp32";
  config.batch.micro_batch_size = draw.of(1, 3);
  const int micro_batches = draw.of(1, runs.d > 2 ? 4 : 9);
  config.batch.global_batch_size = config.batch.micro_batch_size * runs.d * micro_batches;
  return config;
}

void draw_schedule(Draw& draw, Runs& runs, bool whole_backward_passes, const TempDir& dir) {
  Config& config = runs.full;
  const int m = static_cast<int>(*config.batch.global_batch_size / config.batch.micro_batch_size / runs.d);
  ParallelConfig& c = config.parallel;
  c.pipeline_model_parallel_size = runs.p;
  int v = 1;
  if (draw.one_in(3)) {
    v = draw.of(1, 3);
    const StageMap map = draw.one_in(2) ? StageMap::interleaved : StageMap::v_shaped;
    const Schedule schedule =
        random_schedule(draw.random(), runs.p, v, m, map, !whole_backward_passes && draw.one_in(2));
    ASSERT_EQ(find_problems(schedule), std::vector<std::string>());
    ASSERT_TRUE(gradients_in_order(schedule));
    runs.schedule_text = to_text(schedule);
    c.pipeline_schedule = dir / "random.txt";
    std::ofstream(c.pipeline_schedule) << runs.schedule_text;
  } else {
    std::vector<const char*> kinds{"gpipe", "1f1b", "1f1b-eager", "interleaved-bfs"};
    if (m >= runs.p) kinds.push_back("interleaved");
    if (!whole_backward_passes) kinds.insert(kinds.end(), {"zb-h1", "zb-h2", "zb-v"});
    if (!whole_backward_passes && m >= 2 * runs.p) kinds.push_back("dualpipe-v");
    c.pipeline_schedule = kinds[static_cast<size_t>(draw.of(0, static_cast<int>(kinds.size()) - 1))];
    const bool v_shaped = c.pipeline_schedule == "zb-v" || c.pipeline_schedule == "dualpipe-v";
    if (c.pipeline_schedule.starts_with("interleaved")) {
      v = draw.of(2, 3);
      c.virtual_pipeline_model_parallel_size = v;
    } else if (v_shaped) {
      v = 2;
    }
    if (c.pipeline_schedule == "interleaved" && draw.one_in(2)) c.microbatch_group_size_per_vp_stage = m;
  }
  // Layers for every stage, and perhaps other numbers of them at the ends.
  const int stages = runs.p * v;
  int layers = stages * draw.of(1, 2);
  if (stages > 2 && draw.one_in(3)) {
    const int first = draw.of(0, 2), last = draw.of(0, 2);
    c.decoder_first_pipeline_num_layers = first;
    c.decoder_last_pipeline_num_layers = last;
    layers = (stages - 2) * draw.of(1, 2) + first + last;
  } else if (stages > 1 && draw.one_in(3)) {
    layers = 2 * stages - 2;
    c.account_for_embedding_in_pipeline_split = c.account_for_loss_in_pipeline_split = true;
  }
  config.model.num_layers = layers;
}

void draw_switches(Draw& draw, Runs& runs) {
  Config& config = runs.full;
  OverlapConfig& overlap = config.overlap;
  const std::string& strategy = config.parallel.data_parallel_sharding_strategy;
  const bool streams = strategy == "optim_grads" || strategy == "optim_grads_params";
  overlap.overlap_p2p_comm = !draw.one_in(4);
  overlap.p2p_receive_ahead = draw.of(1, 4);
  if (runs.d > 1) {
    overlap.overlap_grad_reduce = draw.one_in(2);
    overlap.overlap_param_gather = strategy != "no_shard" && draw.one_in(2);
    if (overlap.overlap_grad_reduce || overlap.overlap_param_gather) overlap.collectives_in_flight = draw.of(1, 3);
    overlap.align_grad_reduce = overlap.overlap_grad_reduce && runs.p > 1 && !streams && draw.one_in(2);
    if (!streams && draw.one_in(2)) config.parallel.bucket_size = draw.of(1, 5000);
  }
  // The embedding adds to a tied gradient on the same rank, at another time.
  overlap.defer_embedding_wgrad_compute =
      runs.p > 1 && !streams && config.model.untie_embeddings_and_output_weights && draw.one_in(3);
  if (overlap.defer_embedding_wgrad_compute) overlap.wgrad_deferral_limit = draw.of(0, 3);
  if (config.parallel.sequence_parallel) {
    overlap.tp_comm_overlap = draw.among({"none", "bulk", "ring", "pipeline"});
    overlap.tp_comm_overlap_qkv = draw.among({"default", "none", "bulk", "ring", "pipeline"});
    overlap.tp_comm_overlap_fc2 = draw.among({"default", "none", "ring", "pipeline"});
  }
  ModelConfig& model = config.model;
  if (draw.one_in(3)) {
    model.recompute_granularity = "selective";
    model.recompute_modules = draw.among({"core_attn", "layernorm", "mlp", "core_attn,mlp", "layernorm,core_attn,mlp"});
  } else if (draw.one_in(2)) {
    model.recompute_granularity = "full";
    model.recompute_method = draw.among({"uniform", "block"});
    model.recompute_num_layers = 1;
  }
  config.parallel.order = draw.among({"tp-dp-pp", "tp-pp-dp"});
  runs.on_split_devices = draw.one_in(3);
  runs.ahead = draw.one_in(2);
  if (runs.on_split_devices) {
    if (draw.one_in(2)) config.device.cuda_graph_impl = "local";
  } else if (draw.one_in(4)) {
    config.comm.link_latency_us = 20;
    config.comm.link_gbps = 4;
  }
}

Runs draw_runs(int number, const TempDir& dir) {
  Draw draw(number);
  Runs runs;
  do {
    runs.t = draw.among({1, 1, 2, 2, 3, 4});
    runs.p = draw.among({1, 2, 2, 3, 4});
    runs.d = draw.among({1, 1, 2, 2, 3, 4});
  } while (runs.t * runs.p * runs.d > 12);
  const bool sequence_parallel = runs.t > 1 && draw.one_in(2);
  const char* strategy = draw.among({"no_shard", "optim", "optim_grads", "optim_grads_params"});
  const bool streams = std::string(strategy).starts_with("optim_");

  runs.full = draw_model(draw, runs, sequence_parallel);
  runs.full.parallel.tensor_model_parallel_size = runs.t;
  runs.full.parallel.sequence_parallel = sequence_parallel;
  runs.full.parallel.data_parallel_sharding_strategy = strategy;
  runs.full.overlap.average_in_collective = runs.d > 1 && draw.one_in(3);
  draw_schedule(draw, runs, streams, dir);

  runs.one = tiny_config();
  runs.one.model = runs.full.model;
  runs.one.optimizer = runs.full.optimizer;
  runs.one.precision = runs.full.precision;
  runs.one.batch = runs.full.batch;
  // Tied embeddings of two stages are summed in another order, and so are the sums of tensor- and data-parallel ranks.
  const bool untied = runs.full.model.untie_embeddings_and_output_weights;
  runs.plain = runs.full;
  if (untied) runs.plain.parallel = runs.one.parallel;
  runs.plain.parallel.tensor_model_parallel_size = runs.t;
  runs.plain.parallel.sequence_parallel = sequence_parallel;
  runs.plain.parallel.data_parallel_sharding_strategy = streams ? strategy : "no_shard";
  // A strategy that shares gradients adds each micro-batch's as a whole.
  runs.same_order = untied && !streams && runs.t == 1 && runs.d == 1;
  draw_switches(draw, runs);
  return runs;
}

void expect_within(double tolerance, const Curve& curve, const Curve& reference, const char* what) {
  for (size_t i = 0; i < reference.losses.size(); ++i)
    EXPECT_NEAR(curve.losses[i] / reference.losses[i], 1, tolerance) << what << ", step " << i + 1;
}

bool uses_ring(const OverlapConfig& overlap) {
  return overlap.tp_comm_overlap == "ring" || overlap.tp_comm_overlap_qkv == "ring" ||
         overlap.tp_comm_overlap_fc2 == "ring";
}

// The checkpoint's path.
std::string save_after_a_step(Config config, int ranks, const Trainer::Options& options, const std::string& run_dir) {
  config.train.run_dir = run_dir;
  config.checkpoint.save_interval = 1;
  const Layout layout = resolved(config, ranks).layout;
  with_trainers(
      config, ranks,
      [&](Trainer& trainer) {
        Checkpointing checkpointing(trainer.config(), layout, trainer, {}, {}, now_ns());
        trainer.step();
        checkpointing.after_step({});
      },
      options);
  return CheckpointStore(run_dir + "/checkpoints").path_of(1);
}

// The losses of the steps that are left.
std::vector<double> go_on(const std::string& checkpoint, const Config& config, int ranks,
                          const Trainer::Options& options) {
  const Layout layout = resolved(config, ranks).layout;
  std::vector<double> losses;
  with_trainers(
      config, ranks,
      [&](Trainer& trainer) {
        Checkpointing checkpointing(trainer.config(), layout, trainer, {}, {}, now_ns());
        checkpointing.resume({checkpoint}, false);
        for (int i = 1; i < kSteps; ++i) {
          const double loss = trainer.step().loss;
          if (trainer.world().rank() == 0) losses.push_back(loss);
        }
      },
      options);
  return losses;
}

class RandomLayout : public testing::TestWithParam<int> {};

TEST_P(RandomLayout, HasTheLossesOfOneRank) {
  const TempDir dir;
  const Runs runs = draw_runs(GetParam(), dir);
  SCOPED_TRACE(fmt::format("{} ranks{}{}:{}\n{}", runs.t * runs.p * runs.d,
                           runs.on_split_devices ? ", split devices" : "", runs.ahead ? ", a step ahead" : "",
                           words_of(runs.full), runs.schedule_text));
  const int plain_p = runs.plain.parallel.pipeline_model_parallel_size;

  const Curve one = train_on_threads(runs.one, 1, kSteps);
  const Curve plain = runs.same_order ? one : train_on_threads(runs.plain, runs.t * plain_p * runs.d, kSteps);
  Trainer::Options options{.poison = true};
  if (runs.on_split_devices) options.make_backend = make_split_backend;
  const int ranks = runs.t * runs.p * runs.d;
  const Curve full = train_on_threads(runs.full, ranks, kSteps, options, runs.ahead);

  if (runs.full.precision.dtype == "fp32") expect_near(plain, one, "plain against one rank");
  else expect_within(5e-3, plain, one, "plain against one rank");
  // Sums that travel from rank to rank are rounded on each.
  if (runs.full.precision.dtype == "bf16" && uses_ring(runs.full.overlap)) expect_within(5e-3, full, plain, "full");
  else expect_equal(full, plain, "full against plain");

  // Saved after its first step, and gone on with: under the same layout bit for bit, and on one rank.
  const std::string saved = save_after_a_step(runs.full, ranks, options, dir / "run");
  const std::vector<double> rest(full.losses.begin() + 1, full.losses.end());
  EXPECT_EQ(go_on(saved, runs.full, ranks, options), rest);
  const std::vector<double> alone = go_on(saved, runs.one, 1, {});
  const double tolerance = runs.full.precision.dtype == "fp32" ? 2e-5 : 5e-3;
  for (size_t i = 0; i < rest.size(); ++i) EXPECT_NEAR(alone[i] / rest[i], 1, tolerance) << "resumed on one rank";
}

int how_many() {
  const char* wanted = std::getenv("TRIVET_RANDOM_LAYOUTS");
  return wanted ? std::atoi(wanted) : kMatrixStride == 1 ? 60 : 12;
}

INSTANTIATE_TEST_SUITE_P(Drawn, RandomLayout, testing::Range(0, how_many()));

}  // namespace
}  // namespace trivet::test
