// Checks which compositions of layers compile. Each static_assert that a composition does not compile is paired with a
// similar, correct one that does, so that it fails for the intended reason. Bugs are numbered as in Megatron-LM #7452;
// docs/architecture.md contains the full table.
#include <gtest/gtest.h>
#include <type_traits>

#include "engine/model/gpt_stage.h"
#include "parallel/tensor/cross_entropy.h"
#include "parallel/tensor/embedding.h"
#include "parallel/tensor/linear.h"
#include "parallel/tensor/sequence.h"

namespace trivet {
namespace {

// ---- a place never converts to another

template <class From, class To>
constexpr bool becomes = std::is_constructible_v<To, From> || std::is_assignable_v<To&, From>;
template <class Of, class... Others>
constexpr bool becomes_one_of = (becomes<Of, Others> || ...);

static_assert(!becomes_one_of<Residual, Whole, Partial, Hidden, Vocab> && becomes<Residual, Residual>);
static_assert(!becomes_one_of<Whole, Residual, Partial, Hidden, Vocab> && becomes<Whole, Whole>);
static_assert(!becomes_one_of<Partial, Residual, Whole, Hidden, Vocab> && becomes<Partial, Partial>);
static_assert(!becomes_one_of<Hidden, Residual, Whole, Partial, Vocab> && becomes<Hidden, Hidden>);
static_assert(!becomes_one_of<Vocab, Residual, Whole, Partial, Hidden> && becomes<Vocab, Vocab>);
// To a Tensor implicitly, from a Tensor only explicitly.
static_assert(std::is_convertible_v<Residual, Tensor> && std::is_convertible_v<Vocab, In>);
static_assert(!std::is_convertible_v<Tensor, Residual> && std::is_constructible_v<Residual, Tensor>);

// ---- 2: gathered logits in the vocabulary-parallel loss

template <class Logits>
concept LossTakes = requires(VocabParallelCrossEntropy& loss, Logits logits) {
  loss.forward(logits, 0, true);
};
template <class Logits>
concept LossBackwardTakes = requires(VocabParallelCrossEntropy& loss, Logits logits) {
  loss.backward(logits, 0);
};
static_assert(!LossTakes<Whole> && LossTakes<Vocab>);
static_assert(!LossBackwardTakes<Whole> && LossBackwardTakes<Vocab>);
static_assert(!LossTakes<Hidden> && !LossTakes<Partial> && !LossTakes<Residual>);

// ---- 11: a replicated norm on activations partitioned by columns; for its gradient, see PlacedParams below

template <class X, class Y>
constexpr bool norm_takes =
    std::is_invocable_v<decltype(&LayerNorm::forward), const LayerNorm&, Context&, X, Y, Tensor, Tensor>;
static_assert(!norm_takes<Hidden, Hidden> && norm_takes<Residual, Residual>);
static_assert(!norm_takes<Partial, Residual> && !norm_takes<Residual, Partial>);

// ---- 4 to 7: a module that uses a process-wide tensor group instead of its own: only the group passed in exists

static_assert(!std::is_default_constructible_v<TensorGroup> &&
              std::is_constructible_v<TensorGroup, Communicator&, bool>);
static_assert(!std::is_convertible_v<TensorGroup, Communicator&>);

// ---- 10, and a residual that is reduced twice: only partial sums can be reduced, and the result is not partial

template <class Term>
concept Reduces = requires(const TensorGroup& group, Term term, Residual sum, Stream& stream) {
  group.reduce(term, sum, stream);
};
template <class Numbers>
concept ReducesInPlace = requires(const TensorGroup& group, Numbers numbers, Stream& stream) {
  { group.reduce(numbers, Reduce::sum, stream) } -> std::same_as<Whole>;
};
static_assert(!Reduces<Residual> && !Reduces<Whole> && !Reduces<Hidden> && !Reduces<Vocab> && Reduces<Partial>);
static_assert(!ReducesInPlace<Whole> && !ReducesInPlace<Tensor> && ReducesInPlace<Partial>);

// ---- a gather of activations that are whole or partitioned differently

template <class X>
constexpr bool gathers = std::is_invocable_r_v<Whole, decltype(gather_sequence), Context&, X, Scratch::Frame&>;
static_assert(!gathers<Whole> && !gathers<Partial> && !gathers<Hidden> && !gathers<Vocab> && gathers<Residual>);

// ---- linear layers in the wrong order, or without the reduction between them

template <class Linear, class X, class Y>
constexpr bool forward_takes = [] {
  if constexpr (std::is_same_v<Linear, ColumnParallelLinear>)
    return std::is_invocable_v<decltype(&Linear::forward), const Linear&, Context&, X, Y, Hidden, Activation>;
  else return std::is_invocable_v<decltype(&Linear::forward), const Linear&, Context&, X, Y>;
}();
static_assert(!forward_takes<ColumnParallelLinear, Hidden, Hidden> &&
              forward_takes<ColumnParallelLinear, Residual, Hidden>);
static_assert(!forward_takes<ColumnParallelLinear, Residual, Residual> &&
              !forward_takes<ColumnParallelLinear, Partial, Hidden>);
static_assert(!forward_takes<RowParallelLinear, Residual, Residual> &&
              forward_takes<RowParallelLinear, Hidden, Residual>);
static_assert(!forward_takes<RowParallelLinear, Hidden, Partial> && !forward_takes<RowParallelLinear, Whole, Residual>);

// A row-parallel layer's weight gradient reads dy at all positions, its bias gradient dy at this rank's.
template <class DyWhole, class Dy>
constexpr bool row_weight_takes = std::is_invocable_v<decltype(&RowParallelLinear::backward_weight),
                                                      const RowParallelLinear&, Context&, Hidden, DyWhole, Dy>;
static_assert(!row_weight_takes<Operand<Place::residual>, Residual> &&
              !row_weight_takes<Operand<Place::whole>, Whole> && row_weight_takes<Operand<Place::whole>, Residual>);

template <class Out>
constexpr bool embedding_gives = std::is_invocable_v<decltype(&VocabParallelEmbedding::forward),
                                                     const VocabParallelEmbedding&, Context&, Tensor, Out>;
static_assert(!embedding_gives<Vocab> && !embedding_gives<Partial> && embedding_gives<Residual>);

// ---- where a parameter is used decides whether its gradient is a partial sum

TEST(PlacedParams, GradientsAreSummedWhereRanksUseAReplicatedParameterOnDifferentParts) {
  const auto summed = [](bool sequence_parallel, Place used_on, int partition_dim) {
    ParamList params({{Axis::tp, 2}}, {}, sequence_parallel);
    params.begin_unit(0);
    const Placement on_tp = partition_dim < 0 ? kReplicated : partitioned(partition_dim);
    return params.declare({.name = "p", .global_shape = {4}, .placement = {{Axis::tp, on_tp}}, .used_on = used_on})
        .summed_over.has(Axis::tp);
  };
  EXPECT_FALSE(summed(false, Place::residual, -1));
  EXPECT_TRUE(summed(true, Place::residual, -1));
  for (const bool sequence_parallel : {false, true}) {
    EXPECT_TRUE(summed(sequence_parallel, Place::hidden, -1)) << "a norm within a head: 11";
    EXPECT_TRUE(summed(sequence_parallel, Place::vocab, -1));
    EXPECT_FALSE(summed(sequence_parallel, Place::whole, -1));
    EXPECT_FALSE(summed(sequence_parallel, Place::hidden, 0)) << "each rank has its own part of it";
  }
}

}  // namespace
}  // namespace trivet
