// The adapter of adapter.h gives the same numbers on one tensor rank and on two, and its gradients match finite
// differences.
#include <gtest/gtest.h>

#include "engine/model/init.h"
#include "parallel/comm/world.h"
#include "tests/engine/extending/adapter.h"
#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

constexpr int64_t kPositions = 4, kBatch = 2, kHidden = 8, kWidth = 6;

// The results of one rank, or of several, concatenated.
struct Passes {
  Values out, dx;    // [s*, b, h]
  Values down_grad;  // [width/t, h]

  void append(const Passes& other, bool positions) {
    const auto add = [](Values& to, const Values& more) { to.insert(to.end(), more.begin(), more.end()); };
    if (positions) add(out, other.out);
    if (positions) add(dx, other.dx);
    add(down_grad, other.down_grad);
  }
};

// The whole x and the whole gradient of `out`, the same on every rank.
Values whole_x() { return values(Tensors(1).uniform(DType::f32, {kPositions, kBatch, kHidden})); }
Values whole_dout() { return values(Tensors(2).uniform(DType::f32, {kPositions, kBatch, kHidden})); }

// Forward and backward on the rank of `world`, which is the tensor group.
Passes passes_of_rank(Communicator& world, bool sequence_parallel, const Values& x_values) {
  Tensors tensors;
  Arena arena(tensors.device(), "adapter");
  const auto stream = tensors.device().create_compute_stream();
  const auto ops = create_cpu_ops(1);
  WeightGradQueue weight_grads;
  UnitHooks hooks;
  Scratch scratch(arena, 1 << 16);
  Context ctx{.ops = *ops,
              .compute = *stream,
              .tensor = {world, sequence_parallel},
              .weight_grads = weight_grads,
              .units = hooks,
              .scratch = scratch};

  ParamList params({{Axis::tp, world.size()}}, {{Axis::tp, world.rank()}}, sequence_parallel);
  params.begin_unit(0);
  const Adapter adapter(params, "adapter", kHidden, kWidth, {Init::normal, 0.5f});
  for (Param& param : params.all()) {
    param.weight = arena.allocate(DType::f32, param.shape);
    param.grad = tensors.full(DType::f32, param.shape, 0);
    initialize_weight(param, 1, 1, tensors.device(), *stream);
  }

  const int64_t positions = sequence_parallel ? kPositions / world.size() : kPositions;
  const auto of_this_rank = [&](const Values& whole) {
    const Tensor all = tensors.make(DType::f32, {kPositions, kBatch, kHidden},
                                    [&](int64_t i) { return whole[static_cast<size_t>(i)]; });
    return Residual(all.slice(sequence_parallel ? world.rank() * positions : 0, positions));
  };
  const Residual x = of_this_rank(x_values), grad = of_this_rank(whole_dout());
  const Shape inner{kPositions, kBatch, kWidth / world.size()};
  const Adapter::Activations acts{.pre_activation = Hidden(tensors.poisoned(DType::f32, inner)),
                                  .gelu_out = Hidden(tensors.poisoned(DType::f32, inner)),
                                  .out = Residual(tensors.poisoned(DType::f32, x.shape))};

  adapter.forward(ctx, x, acts);
  adapter.backward(ctx, x, grad, acts);
  return {.out = values(acts.out), .dx = values(grad), .down_grad = values(params.all().front().grad)};
}

Passes passes_on(int ranks, bool sequence_parallel, const Values& x = whole_x()) {
  std::vector<Passes> of_rank(static_cast<size_t>(ranks));
  run_thread_ranks(ranks, [&](Communicator& world) {
    of_rank[static_cast<size_t>(world.rank())] = passes_of_rank(world, sequence_parallel, x);
  });
  for (size_t rank = 1; rank < of_rank.size(); ++rank) of_rank[0].append(of_rank[rank], sequence_parallel);
  return of_rank[0];
}

void expect_near(const Values& found, const Values& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << "element " << i;
}

TEST(ExtendingLayer, IsTheSameOnTwoTensorRanks) {
  const Passes one = passes_on(1, false);
  for (const bool sequence_parallel : {false, true}) {
    SCOPED_TRACE(sequence_parallel ? "sequence parallel" : "whole sequences");
    const Passes two = passes_on(2, sequence_parallel);
    expect_near(two.out, one.out);
    expect_near(two.dx, one.dx);
    expect_near(two.down_grad, one.down_grad);
  }
}

TEST(ExtendingLayer, GradientIsThatOfFiniteDifferences) {
  const Passes passes = passes_on(1, false);
  const auto loss = [](const Values& x) { return dot(passes_on(1, false, x).out, whole_dout()); };
  for (const size_t i : {0, 13, 63})
    EXPECT_NEAR(passes.dx[i], numeric_gradient(loss, whole_x(), i, 1e-2), 2e-3) << "element " << i;
}

}  // namespace
}  // namespace trivet::test
