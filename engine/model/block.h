// One transformer block: pre-norm attention and MLP branches on a residual stream, as in GPT-2 and GPT-3 (Radford et
// al. 2019), Llama (Touvron et al. 2023) or Qwen3 (Yang et al. 2025): RoPE, and the norms of queries and keys before
// it, are optional; act is GELU or SwiGLU. Its linear layers are partitioned over the tensor-parallel group.
//
//   x ── ln1 ── qkv ── rope ── attention ── proj ── dropout ── + ── ln2 ── fc1 ── act ── fc2 ── dropout ── + ── out
//    └─────────────────────────────────────────────────────────┘└──────────────────────────────────────────┘
//
// The steps, numbered as in the .cc; forward runs from 1 to 6, backward from 6 to 1:
//   1. ln1: every rank normalises all positions, or its own under sequence parallelism
//   2. qkv: column-parallel; each rank computes the queries, keys and values of its own heads; head norms; RoPE
//   3. attention over these heads, and over the keys and values of other context ranks (attention.h)
//   4. proj: row-parallel, its partial sums reduced over the tensor group; dropout; added to the residual stream
//   5. ln2; fc1 (column-parallel) and its activation
//   6. fc2 (row-parallel), reduced; dropout; added to the residual stream
// So a block communicates twice forward, in 4 and 6 (the g of Shoeybi et al. 2019), and twice backward, in 5 and 2
// (their f): four all-reduces. Under sequence parallelism each becomes a reduce-scatter. All-gathers precede 2 and 5 in
// forward and 6 and 4 in backward, where they also precede 5 and 2, whose weight gradients need x at all positions.
// That makes 4 reduce-scatters and 6 all-gathers instead of 4 and 4 (an all-reduce is one of each): 25 % more bytes.
//
// Forward saves in BlockActivations what backward reads. Any part of it can be recomputed instead (recompute.h).
// Backward replaces the gradient of `out` with the gradient of x. s* is s, or s/t under sequence parallelism.
#pragma once

#include <optional>
#include <vector>

#include "engine/model/layernorm.h"
#include "engine/model/recompute.h"
#include "engine/model/shape.h"
#include "parallel/context.h"
#include "parallel/param.h"
#include "parallel/tensor/linear.h"

namespace trivet {

// Operands are saved in the form that their GEMMs read: under FP8, as codes and a scale.
struct BlockActivations {
  Operand<Place::residual> ln1_out;  // [s*, b, h]
  Tensor ln1_mean, ln1_rstd;         // [s*, b] fp32; RMSNorm has no means
  Hidden qkv;                        // [s, b, (a + 2g) d/t] in Megatron's order (heads_view.h), rotated by rope
  Hidden qk;                         // [s, b, (a + g) d/t] only with query/key norms: rope rotates it, not qkv
  Tensor qk_mean, qk_rstd;           // [(a + g)/t s b] fp32: for all queries, then for all keys
  Hidden attention_out;              // [s, b, a d/t]
  Tensor lse;                        // [b, a/t, s] fp32
  Residual middle;                   // [s*, b, h] the residual stream between the branches
  Operand<Place::residual> ln2_out;  // [s*, b, h]
  Tensor ln2_mean, ln2_rstd;         // [s*, b] fp32
  Hidden fc1_out;                    // [s, b, f/t]; gated: [s, b, 2 f/t], the gate's columns first
  Operand<Place::hidden> activated;  // [s, b, f/t]
  Residual out;                      // [s*, b, h]
};
// The activations that `parts` write; the others are null. as_codes: operands are saved in FP8.
BlockActivations allocate_block_activations(Arena& arena, const GptShape& shape, const BlockParts& parts,
                                            bool as_codes);
// The tensors of `saved`, or those of `others` where they are null.
BlockActivations merge(BlockActivations saved, BlockActivations others);
std::vector<Tensor> tensors_of(BlockActivations acts);  // without the null ones
// For generation: views of the first rows. Those of queries, keys and values cover all positions so far; the rest cover
// only the new ones. All tensors must be allocated.
BlockActivations front_of(BlockActivations acts, const GptShape& shape, const PositionRange& positions);

// The gradients that the weight-gradient half of a block reads. All blocks reuse one set, unless the halves run
// separately; then each block of a micro-batch in flight has its own.
struct BlockGradients {
  Residual proj_out;  // [s*, b, h] null if the residual stream's gradient serves directly (no dropout, joint halves)
  Hidden qkv;         // shaped like the activation
  Residual fc2_out;   // [s*, b, h] null as above
  Hidden fc1_out;     // shaped like the activation
};
BlockGradients allocate_block_gradients(Arena& arena, const GptShape& shape, bool halves_apart);

class Block {
 public:
  // layer: global index, from 0. rotary: GptStage's table of angles, filled by its first pass; null without RoPE.
  Block(ParamList& params, const GptShape& shape, int64_t layer, uint64_t dropout_seed, const Tensor& rotary);

  // The parts read x and what earlier parts wrote into `acts`.
  void forward(Context& ctx, Residual x, const MicroBatch& micro_batch, const BlockActivations& acts,
               const BlockParts& parts = BlockParts::all()) const;
  // grad: [s*, b, h], the gradient of acts.out, replaced in place by that of x.
  void backward(Context& ctx, Residual x, Residual grad, const MicroBatch& micro_batch, const BlockActivations& acts,
                const BlockGradients& grads) const;

 private:
  Dropout dropout(DropoutSite site, const MicroBatch& micro_batch) const;
  QkvViews packed(Hidden qkv) const;
  QkvViews heads_of(const BlockActivations& acts) const;  // as attention reads them
  // Returns a norm's output as its linear layer reads it: `saved`, or a tensor in `frame` if this pass writes no codes.
  Operand<Place::residual> normalise(Context& ctx, const LayerNorm& norm, Residual x,
                                     const Operand<Place::residual>& saved, Tensor mean, Tensor rstd,
                                     Scratch::Frame& frame) const;
  Operand<Place::hidden> fc1_and_activation(Context& ctx, const Operand<Place::residual>& x,
                                            const BlockActivations& acts, Scratch::Frame& frame) const;
  // Head norms and RoPE of the last `count` positions, and their backward, in place on `grad`.
  void norm_and_rope(Context& ctx, const BlockActivations& acts, const MicroBatch& micro_batch, int64_t count) const;
  void backward_from_rope(Context& ctx, const BlockActivations& acts, const MicroBatch& micro_batch, Hidden grad) const;
  void rope(Context& ctx, const QkvViews& heads, const MicroBatch& micro_batch, int64_t count, bool inverse) const;

  const GptShape& shape_;
  const Tensor& rotary_;
  int64_t layer_;
  uint64_t dropout_seed_;
  LayerNorm ln1_;
  ColumnParallelLinear qkv_;
  std::optional<HeadNorm> q_norm_, k_norm_;
  RowParallelLinear proj_;
  LayerNorm ln2_;
  ColumnParallelLinear fc1_;
  RowParallelLinear fc2_;
};

}  // namespace trivet
