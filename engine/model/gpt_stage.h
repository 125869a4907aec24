// GptStage: consecutive blocks of a GPT on one rank, with the embedding on the model's first stage and the head on its
// last. A model without pipeline parallelism is one stage.
//
// A micro-batch's activations live in a slot from its forward to its backward; slots are allocated once. Recomputed
// activations are not in the slots: all micro-batches share a few tensors for them.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "engine/model/block.h"
#include "engine/model/embedding.h"
#include "engine/model/head.h"
#include "engine/model/recompute.h"

namespace trivet {

struct StageRange {
  int64_t first_layer = 0;
  int64_t num_layers = 0;
  bool has_embedding = true;
  bool has_head = true;
};

class GptStage {
 public:
  // Declares the parameters in the order of the forward pass. `seed` keys the dropout. word_embedding: the weight to
  // tie the head to, if another stage on this rank has it; else null.
  GptStage(ParamList& params, const GptShape& shape, const StageRange& range, uint64_t seed,
           const Recompute& recompute = {}, Param* word_embedding = nullptr);
  GptStage(const GptStage&) = delete;

  // stashes: how many micro-batches can be between the two halves of a split backward; each holds the gradients and the
  // recomputed activations that the weight half needs. whole_backwards: true if there are unsplit backwards too.
  // deferred_heads: how many micro-batches can have a deferred gradient of the output weight at the same time.
  void allocate(Arena& activations, int slots, int stashes, bool whole_backwards, int deferred_heads = 0);
  // Bytes of scratch for forward and backward of a stage of `blocks` blocks, and for the logits of one position.
  static int64_t scratch_bytes(const GptShape& shape, const Recompute& recompute, int64_t blocks);

  // Inputs, filled by the caller: tokens, labels, position_ids and starts (as in MicroBatch), [s, b] int32;
  // first_sample [1] int64, null without dropout.
  Tensor tokens(int slot) const { return slot_at(slot).tokens; }
  Tensor labels(int slot) const { return slot_at(slot).labels; }
  Tensor position_ids(int slot) const { return slot_at(slot).position_ids; }
  Tensor starts(int slot) const { return slot_at(slot).starts; }
  Tensor first_sample(int slot) const { return slot_at(slot).first_sample; }
  Residual input(int slot) const { return slot_at(slot).input; }  // [s*, b, h]: the previous stage's output
  void set_input(int slot, Residual input) { slots_.at(static_cast<size_t>(slot)).input = input; }
  Residual output(int slot) const;  // [s*, b, h]: the next stage's input
  // [rows, padded_vocab/t]; after a pass over some positions, row 0 belongs to position PositionRange::read.
  Vocab logits(int slot) const { return slot_at(slot).head.logits; }

  // On the last stage, loss[0] (fp32) += loss_scale * sum over the tokens of the cross-entropy. A pass over some
  // positions fills the first rows of the tensors above; the qkv of all earlier positions must have been saved.
  void forward(Context& ctx, int slot, const MicroBatch& micro_batch, Tensor loss);
  // grad: [s*, b, h], the gradient of the output (ignored on the last stage), becomes that of the input (undefined on
  // the first stage). stash: for a split backward, holds what its weight half reads; else -1. loss: as in forward; a
  // chunked loss (head.h) is added here.
  void backward(Context& ctx, int slot, int stash, const MicroBatch& micro_batch, Residual grad, Tensor loss = {});
  // Computes the deferred gradients of the output weight, in order.
  void run_deferred(Context& ctx);
  // Fills the slot, and the memory of recomputed activations, with NaN.
  void poison(Context& ctx, int slot) const;

  Param* word_embedding() { return embedding_ ? &embedding_->word_weight() : nullptr; }
  const GptShape& shape() const { return shape_; }
  const StageRange& range() const { return range_; }

 private:
  struct Slot {
    Tensor tokens, labels, position_ids, starts, first_sample;
    Residual input;
    std::vector<BlockActivations> blocks;
    HeadActivations head;
  };
  // Inputs of the output weight's gradient.
  struct DeferredHead {
    Residual norm_out;  // [s*, b, h]
    Vocab d_logits;     // [s * b, padded_vocab/t]
  };
  const Slot& slot_at(int slot) const { return slots_.at(static_cast<size_t>(slot)); }
  // Inputs of one block's deferred weight half, in addition to its slot's.
  struct Stash {
    BlockGradients gradients;
    BlockActivations recomputed;
  };
  struct BlockPlan {
    BlockParts recomputed;  // not saved in the slots
    size_t place_in_group;  // in its RecomputeGroup
  };
  void fill_rotary_once(Context& ctx);
  // Runs the parts of a group's blocks that were not saved.
  void recompute(Context& ctx, const RecomputeGroup& group, const Slot& slot, int stash, const MicroBatch& micro_batch);
  void defer_head(Slot& slot);  // saves the inputs of the output weight's gradient
  // One block's activations: the slot's, and buffers for the recomputed ones. stash: for a split backward, else -1.
  BlockActivations activations(const Slot& slot, int stash, size_t block) const;
  bool saves_codes(size_t block) const {
    return Operands(shape_.fp8_of(range_.first_layer + static_cast<int64_t>(block))).saves_codes();
  }
  int block_unit(size_t block) const { return first_block_unit_ + static_cast<int>(block); }
  Residual block_input(const Slot& slot, int stash, size_t block) const {
    return block == 0 ? slot.input : activations(slot, stash, block - 1).out;
  }

  GptShape shape_;
  StageRange range_;
  // [s, width] of shape_.rotary, for this rank's positions or, with position ids, for all; filled by the first pass;
  // null without rope.
  Tensor rotary_;
  bool rotary_filled_ = false;
  int embedding_unit_ = -1, first_block_unit_ = -1, head_unit_ = -1;  // in the ParamList
  std::optional<Embedding> embedding_;
  std::deque<Block> blocks_;
  std::optional<Head> head_;
  std::vector<RecomputeGroup> groups_;
  std::vector<BlockPlan> plan_;  // [block]
  std::vector<Slot> slots_;
  std::vector<BlockActivations> recomputed_;  // [place in group], reused by all groups
  BlockGradients gradients_;                  // reused by all blocks in unsplit backwards
  std::vector<std::vector<Stash>> stashes_;   // [stash][block]
  std::vector<DeferredHead> deferred_heads_;  // swapped with a slot's tensors
  size_t heads_waiting_ = 0;                  // how many deferred_heads_ are in use, from the front
};

}  // namespace trivet
