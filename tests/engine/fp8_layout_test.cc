// FP8 in the headline test. A tensor's scale is a power of two derived from its largest magnitude over all ranks, so
// layouts with equal bits in bf16 have equal bits in FP8; if sums are taken in another order, a number at a rounding
// tie moves by one step of the grid.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "parallel/comm/world.h"
#include "parallel/tensor/linear.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

constexpr int kFp8Steps = kMatrixSteps;

Config fp8_model(bool llama, Fp8 fp8 = Fp8::hybrid) {
  Config config = tiny_model(llama);
  config.model.untie_embeddings_and_output_weights = true;
  config.precision.dtype = DType::bf16;
  config.precision.fp8 = fp8;
  return config;
}
Config in_blocks(Config config) {
  config.precision.fp8 = Fp8::e4m3;
  config.precision.fp8_recipe = Fp8Recipe::blockwise;
  return config;
}
Curve train_fp8(const Config& config, const Cut& how) {
  return train_on_threads(cut(config, how), how.ranks(), kFp8Steps, true);
}

TEST(Fp8Layout, IsNearBf16AndNotTheSame) {
  for (const bool llama : {false, true}) {
    const Curve bf16 = train_on_threads(fp8_model(llama, Fp8::none), 1, kFp8Steps);
    const Curve hybrid = train_on_threads(fp8_model(llama), 1, kFp8Steps);
    const Curve e4m3 = train_on_threads(fp8_model(llama, Fp8::e4m3), 1, kFp8Steps);
    const Curve blocks = train_on_threads(in_blocks(fp8_model(llama)), 1, kFp8Steps);
    EXPECT_NE(hybrid.losses, bf16.losses);
    EXPECT_EQ(hybrid.losses[0], e4m3.losses[0]) << "forward passes alike";
    EXPECT_NE(hybrid.norms, e4m3.norms);
    EXPECT_NE(blocks.norms, e4m3.norms);
    for (size_t i = 0; i < bf16.losses.size(); ++i)
      for (const Curve* curve : {&hybrid, &e4m3, &blocks}) {
        EXPECT_NEAR(curve->losses[i], bf16.losses[i], 5e-3 * bf16.losses[i]) << i;
        EXPECT_NEAR(curve->norms[i], bf16.norms[i], 0.1 * bf16.norms[i]) << i;
      }
  }
}

struct Fp8Case {
  const char* name;
  Cut cut;
  Cut reference{};  // must have the same bits
  std::vector<std::pair<const char*, const char*>> keys{};
};

class Fp8Bits : public testing::TestWithParam<Fp8Case> {};

TEST_P(Fp8Bits, AreThoseOfTheReference) {
  for (const bool llama : {false, true}) {
    SCOPED_TRACE(llama);
    Config config = llama ? in_blocks(fp8_model(llama)) : fp8_model(llama);
    const Curve reference = train_fp8(config, GetParam().reference);
    for (const auto& [key, value] : GetParam().keys) set_key(config, key, value);
    expect_equal(train_fp8(config, GetParam().cut), reference);
  }
}

constexpr Cut kDataOfTwo{.d = 2, .strategy = "optim"}, kPositionsOfTwo{.t = 2, .sequence_parallel = true};
INSTANTIATE_TEST_SUITE_P(
    Matrix, Fp8Bits,
    testing::Values(Fp8Case{"gpipe", {.p = 2, .schedule = "gpipe"}},
                    Fp8Case{"interleaved", {.p = 2, .schedule = "interleaved", .v = 2}},
                    Fp8Case{"zero_bubble", {.p = 2, .schedule = "zb-h1"}},
                    Fp8Case{"v_shaped", {.p = 2, .schedule = "zb-v"}},
                    Fp8Case{
                        "codes_again",
                        {.p = 2, .schedule = "zb-h1"},
                        {},
                        {{"model.recompute_granularity", "selective"}, {"model.recompute_modules", "layernorm,mlp"}}},
                    Fp8Case{"all_again",
                            {},
                            {},
                            {{"model.recompute_granularity", "full"},
                             {"model.recompute_method", "uniform"},
                             {"model.recompute_num_layers", "1"}}},
                    // The second block, which is not recomputed, needs more scratch.
                    Fp8Case{"first_again",
                            {},
                            {},
                            {{"model.recompute_granularity", "full"},
                             {"model.recompute_method", "block"},
                             {"model.recompute_num_layers", "1"}}},
                    Fp8Case{"whole_states", {.d = 2}, kDataOfTwo},
                    Fp8Case{"overlapped",
                            kDataOfTwo,
                            kDataOfTwo,
                            {{"overlap.overlap_grad_reduce", "true"}, {"overlap.overlap_param_gather", "true"}}},
                    Fp8Case{"zero_3", {.d = 2, .strategy = "optim_grads_params"}, {.d = 2, .strategy = "optim_grads"}},
                    Fp8Case{"bulk", kPositionsOfTwo, kPositionsOfTwo, {{"overlap.tp_comm_overlap", "bulk"}}},
                    Fp8Case{"pipelined", kPositionsOfTwo, kPositionsOfTwo, {{"overlap.tp_comm_overlap", "pipeline"}}},
                    Fp8Case{"zero_bubble_in_sequence",
                            {.t = 2, .p = 2, .sequence_parallel = true, .schedule = "zb-h1"},
                            kPositionsOfTwo}),
    [](const auto& info) { return info.param.name; });

// All parts of a tensor share one scale: over each axis, losses are closer to one rank's than with per-part scales.
TEST(Fp8Layout, HasTheLossesOfOneRankWithinItsGrid) {
  for (const bool llama : {false, true}) {
    const Config config = llama ? in_blocks(fp8_model(llama)) : fp8_model(llama);
    const Curve reference = train_fp8(config, {});
    for (const Cut& how : {Cut{.t = 2}, kPositionsOfTwo, Cut{.t = 4, .sequence_parallel = true}, Cut{.d = 2},
                           Cut{.c = 2}, Cut{.c = 2, .cp_comm_type = CpCommType::all_gather},
                           Cut{.t = 2, .p = 2, .sequence_parallel = true, .strategy = "optim", .c = 2}}) {
      const Curve curve = train_fp8(config, how);
      double worst = 0;
      for (size_t i = 0; i < curve.losses.size(); ++i)
        worst = std::max(worst, std::abs(curve.losses[i] / reference.losses[i] - 1));
      EXPECT_LE(worst, 1.5e-3) << "t " << how.t << " c " << how.c << " d " << how.d;
    }
  }
}

// Saves one of two bytes per element of the norms' outputs and the MLP's activation, less three scales, if the weight
// gradients use the same codes. s b = 32, h 32, f 128.
TEST(Fp8Layout, SavesCodesWhereTheWeightsGradientTakesThem) {
  const auto activations = [](const Config& config, int pp) {
    const auto [run, layout] = resolved(cut(config, {.p = 2, .schedule = "gpipe"}), 2);
    for (const MemoryItem& item : plan_memory(run, layout, {{Axis::pp, pp}}).items)
      if (item.name == "activations") return item.bytes;
    return int64_t{-1};
  };
  const int64_t slots = 4, saved = 32 * (2 * 32 + 128) - 3 * 4;
  Config config = fp8_model(false);
  const int64_t bf16[] = {activations(fp8_model(false, Fp8::none), 0), activations(fp8_model(false, Fp8::none), 1)};
  for (const int pp : {0, 1}) EXPECT_EQ(bf16[pp] - activations(config, pp), slots * 2 * saved) << pp;
  config.precision.first_last_layers_bf16 = true;
  config.precision.num_layers_at_start_in_bf16 = 1;
  config.precision.num_layers_at_end_in_bf16 = 0;
  EXPECT_EQ(bf16[0] - activations(config, 0), slots * saved);
  EXPECT_EQ(bf16[1] - activations(config, 1), slots * 2 * saved);
  config = fp8_model(false);
  config.precision.fp8_wgrad = false;
  EXPECT_EQ(activations(config, 0), bf16[0]);
  EXPECT_EQ(activations(in_blocks(fp8_model(false)), 0), bf16[0]);
}

// Weight gradients in bf16: forward passes stay the same, and layouts still agree.
TEST(Fp8Layout, WeightGradientsCanStayInBf16) {
  Config config = fp8_model(false);
  const Curve quantised = train_fp8(config, kPositionsOfTwo);
  config.precision.fp8_wgrad = false;
  const Curve kept = train_fp8(config, kPositionsOfTwo);
  EXPECT_EQ(kept.losses[0], quantised.losses[0]);
  EXPECT_NE(kept.norms[0], quantised.norms[0]);
  config.overlap.tp_comm_overlap = TensorOverlap::bulk;
  expect_equal(train_fp8(config, kPositionsOfTwo), kept, "bulk");
  config.overlap.tp_comm_overlap = TensorOverlap::none;
  expect_equal(train_fp8(config, {.t = 2, .p = 2, .sequence_parallel = true, .schedule = "zb-h1"}), kept, "deferred");
}

// pytorch/ao PR 590: a gather meant to run in FP8 ran in bf16, unnoticed. A step of 4 layers and 4 micro-batches
// gathers the inputs of qkv and fc1 twice and the output gradients of proj and fc2 once. It reduces one scale per
// operand of a layer: 4 inputs, 4 gradients, proj's input again, which is saved in bf16, and 4 weights per step. With
// blocks it gathers scales instead of reducing them, and also gathers the output gradients of proj and fc2 along
// tokens.
TEST(Fp8Layout, GathersOneByteAnElementAndReducesOrGathersItsScales) {
  struct Calls {
    int64_t gathered = 0, reductions = 0;
  };
  const auto calls_of = [](const Config& config) {
    Calls calls;
    const std::vector<TracedStep> ranks = traced_steps(cut(config, kPositionsOfTwo), 2);
    for (const std::vector<Span>& row : ranks[0].rows)
      for (const Span& span : row) {
        if (span.info.name == std::string_view("all_gather")) calls.gathered += span.info.bytes;
        if (span.info.name == std::string_view("all_reduce")) ++calls.reductions;
      }
    return calls;
  };
  const Calls bf16 = calls_of(fp8_model(false, Fp8::none)), fp8 = calls_of(fp8_model(false));
  EXPECT_EQ(bf16.gathered - fp8.gathered, 6 * 4 * 4 * (16 * 2 * 32));
  EXPECT_EQ(fp8.reductions - bf16.reductions, 4 * (4 * 9 + 4));
  const Calls blocks = calls_of(in_blocks(fp8_model(false)));
  EXPECT_EQ(blocks.reductions, bf16.reductions);
  // For 16 x 2 positions of 32 columns: one scale per position or, on each rank, per column.
  EXPECT_EQ(blocks.gathered - fp8.gathered, 4 * 4 * (2 * (16 * 2 * 32) + 4 * (4 * 16 * 2) + 4 * (4 * 2 * 32)));
}

// Transformer Engine 74: the scale of a gathered tensor was not reduced over the tensor ranks. An outlier on one rank,
// in its positions of x or its columns of dy, must scale the data of all ranks: each row of a GEMM's result is bitwise
// that of one rank.
struct LinearResults {
  std::vector<uint16_t> y;      // [s, out]; for a row-parallel layer dx, [s, in]
  std::vector<float> d_weight;  // [out, in]
};
struct LinearCase {
  int64_t seq = 8, in = 32, out = 16;
  Fp8Mode fp8{.format = Fp8::hybrid};
  int64_t outlier = 7;  // its position in x; -1: none in x or dy
};
template <class Linear>
LinearResults run_linear(int ranks, bool sequence_parallel, TensorOverlap overlap = {}, const LinearCase& how = {}) {
  constexpr bool kColumn = std::is_same_v<Linear, ColumnParallelLinear>;
  const auto& [all_seq, all_in, all_out, fp8, outlier] = how;
  const int64_t width = kColumn ? all_out : all_in;  // of the partitioned dimension
  LinearResults all{std::vector<uint16_t>(static_cast<size_t>(all_seq * width)),
                    std::vector<float>(static_cast<size_t>(all_out * all_in))};
  run_thread_ranks(ranks, [&](Communicator& world) {
    const int64_t r = world.rank(), own = width / ranks, seq = sequence_parallel ? all_seq / ranks : all_seq;
    const auto device = create_cpu_device();
    const auto stream = device->create_compute_stream();
    const auto ops = create_cpu_ops(1);
    Arena arena(*device, "test"), scratch_arena(*device, "scratch");
    ParamList params({{Axis::tp, ranks}}, {{Axis::tp, world.rank()}}, sequence_parallel);
    params.begin_unit(0);
    const Linear linear = [&] {
      if constexpr (kColumn) return Linear(params, "linear", all_in, {all_out}, {}, Bias::none, overlap, fp8);
      else return Linear(params, "linear", all_in, all_out, {}, Bias::none, overlap, fp8);
    }();
    // Values of magnitude 1, functions of their place in the whole matrix, and one of 300.
    const auto fill = [&](Shape shape, int64_t first_row, int64_t first_column, int64_t outlier_at) {
      const Tensor x = arena.allocate(DType::bf16, shape);
      for (int64_t i = 0; i < x.rows(); ++i)
        for (int64_t j = 0; j < x.cols(); ++j) {
          const int64_t at = (first_row + i) * 1000 + first_column + j;
          x.as<bf16>()[i * x.cols() + j] =
              bf16(at == outlier_at ? 300.0f : static_cast<float>(std::sin(static_cast<double>(at) * 0.7)));
        }
      return x;
    };
    Param& weight = params.all().front();
    weight.weight = fill(weight.shape, kColumn ? r * own : 0, kColumn ? 0 : r * own, -1);
    weight.grad = arena.allocate(DType::f32, weight.shape);
    weight.overwrite = true;
    const int64_t first = sequence_parallel ? r * seq : 0;
    const auto residual = [&](int64_t columns, int64_t outlier_at) {
      return Residual(fill({seq, 1, columns}, first, 0, outlier_at));
    };
    const auto hidden = [&](int64_t outlier_at) { return Hidden(fill({all_seq, 1, own}, 0, r * own, outlier_at)); };
    Scratch scratch(scratch_arena, 16 << 20);
    WeightGradQueue queue;
    UnitHooks none;
    std::optional<TensorCommStream> comm_stream;
    if (overlap != TensorOverlap::none) comm_stream.emplace(CommStreamSite{*device, *stream, world});
    Context ctx{.ops = *ops,
                .compute = *stream,
                .tensor = {world, sequence_parallel},
                .weight_grads = queue,
                .units = none,
                .scratch = scratch,
                .tensor_comm_stream = comm_stream ? &*comm_stream : nullptr};
    const int64_t in_x = outlier < 0 ? -1 : outlier * 1000 + 3, in_dy = outlier < 0 ? -1 : 2 * 1000 + all_out - 1;
    Hidden found = hidden(-1);
    if constexpr (kColumn) {
      const Residual x = residual(all_in, in_x);
      linear.forward(ctx, x, found);
      linear.backward(ctx, x, hidden(in_dy), residual(all_in, -1));
    } else {
      const Hidden x = hidden(in_x);
      linear.forward(ctx, x, residual(all_out, -1));
      linear.backward(ctx, x, residual(all_out, in_dy), found);
    }
    stream->synchronize();
    for (int64_t i = 0; i < all_seq; ++i)
      for (int64_t j = 0; j < own; ++j)
        all.y[static_cast<size_t>(i * width + r * own + j)] = found.as<bf16>()[i * own + j].bits;
    for (int64_t i = 0; i < weight.grad.rows(); ++i)
      for (int64_t j = 0; j < weight.grad.cols(); ++j)
        all.d_weight[static_cast<size_t>(kColumn ? (r * own + i) * all_in + j : i * all_in + r * own + j)] =
            weight.grad.as<float>()[i * weight.grad.cols() + j];
  });
  return all;
}
TEST(Fp8Layout, AnOutlierOfOneRankScalesWhatAllHave) {
  const LinearResults one = run_linear<ColumnParallelLinear>(1, false);
  for (const int ranks : {2, 4})
    for (const bool sequence_parallel : {false, true}) {
      const LinearResults found = run_linear<ColumnParallelLinear>(ranks, sequence_parallel);
      EXPECT_EQ(found.y, one.y) << ranks << " " << sequence_parallel;
      EXPECT_EQ(found.d_weight, one.d_weight) << ranks << " " << sequence_parallel;
    }
}

// If ranks hold whole blocks of columns, outputs and tokens, their codes are those of one rank in every overlap mode:
// GEMM results that are not summed over ranks are bitwise one rank's.
template <class Linear>
void expect_blocks_of_one_rank() {
  const LinearCase blocks{.seq = 512, .in = 256, .out = 256, .fp8 = {Fp8::e4m3, true, Fp8Recipe::blockwise}};
  const LinearResults one = run_linear<Linear>(1, false, {}, blocks);
  using enum TensorOverlap;
  for (const TensorOverlap overlap : {none, bulk, ring, pipeline}) {
    const LinearResults found = run_linear<Linear>(2, true, overlap, blocks);
    EXPECT_EQ(found.y, one.y) << static_cast<int>(overlap);
    EXPECT_EQ(found.d_weight, one.d_weight) << static_cast<int>(overlap);
  }
  EXPECT_EQ(run_linear<Linear>(2, false, {}, blocks).d_weight, one.d_weight);
}
TEST(Fp8Layout, WholeBlocksDoNotDependOnT) {
  expect_blocks_of_one_rank<ColumnParallelLinear>();
  expect_blocks_of_one_rank<RowParallelLinear>();
}

// A block's scale depends on its own elements only: an outlier at one position changes no other position's output, and
// changes the weight gradient only in its own row or column, though there in the terms of all tokens of its block.
TEST(Fp8Layout, AnOutlierStaysInItsBlocks) {
  LinearCase how{.seq = 300, .in = 160, .out = 48, .fp8 = {Fp8::e4m3, true, Fp8Recipe::blockwise}, .outlier = -1};
  const LinearResults without = run_linear<ColumnParallelLinear>(1, false, {}, how);
  how.outlier = 200;  // in x; in dy it is position 2's last output
  const LinearResults with = run_linear<ColumnParallelLinear>(1, false, {}, how);
  for (int64_t i = 0; i < how.seq * how.out; ++i) {
    if (i / how.out == how.outlier) continue;
    ASSERT_EQ(with.y[static_cast<size_t>(i)], without.y[static_cast<size_t>(i)]) << "position " << i / how.out;
  }
  for (int64_t i = 0; i < how.out * how.in; ++i) {
    if (i % how.in == 3 || i / how.in == how.out - 1) continue;
    ASSERT_EQ(with.d_weight[static_cast<size_t>(i)], without.d_weight[static_cast<size_t>(i)]) << i;
  }
  how.fp8.recipe = Fp8Recipe::tensorwise;  // an outlier affects all positions
  const std::vector<uint16_t> by_tensors = run_linear<ColumnParallelLinear>(1, false, {}, how).y;
  how.outlier = -1;
  const std::vector<uint16_t> before = run_linear<ColumnParallelLinear>(1, false, {}, how).y;
  EXPECT_FALSE(std::equal(before.begin(), before.begin() + 200 * how.out, by_tensors.begin()));
  EXPECT_NE(with.y, without.y);
  EXPECT_NE(with.d_weight, without.d_weight);
}

TEST(Fp8Layout, LayersAtTheEndsStayInBf16) {
  Config config = fp8_model(true);
  set_key(config, "precision.first_last_layers_bf16", "true");
  const auto quantised = [&](const Config& c) {
    std::vector<std::string> names;
    with_trainers(c, 1, [&](Trainer& trainer) {
      for (const Param& param : trainer.state().params.all())
        if (param.spec.quantised) names.push_back(param.spec.name);
    });
    return names;
  };
  EXPECT_EQ(quantised(fp8_model(true)).size(), 16u);
  EXPECT_EQ(
      quantised(config),
      (std::vector<std::string>{
          "decoder.layers.1.self_attention.linear_qkv.weight", "decoder.layers.1.self_attention.linear_proj.weight",
          "decoder.layers.1.mlp.linear_fc1.weight", "decoder.layers.1.mlp.linear_fc2.weight",
          "decoder.layers.2.self_attention.linear_qkv.weight", "decoder.layers.2.self_attention.linear_proj.weight",
          "decoder.layers.2.mlp.linear_fc1.weight", "decoder.layers.2.mlp.linear_fc2.weight"}));
}

}  // namespace
}  // namespace trivet::test
