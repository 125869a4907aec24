// GptStage: a run of consecutive blocks of a GPT on one rank, with the embedding in front when it is the model's first
// stage and the head behind when it is the last. A model without pipeline parallelism is one stage.
//
// The activations of a micro-batch live in a slot from its forward to its backward; a stage has as many slots as
// micro-batches may be under way. Slots are allocated once. Activations that are recomputed have no place in the slots:
// all micro-batches write them to the same few tensors in turn.
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
  // Declares the parameters, in the order of the forward pass. The dropout masks follow from `seed`. word_embedding:
  // the weight to tie the head to, where another stage of this rank has it; else null.
  GptStage(ParamList& params, const GptShape& shape, const StageRange& range, uint64_t seed,
           const Recompute& recompute = {}, Param* word_embedding = nullptr);
  GptStage(const GptStage&) = delete;

  // stashes: how many micro-batches may be between the two halves of a backward that are run apart; each holds the
  // gradients and the recomputed activations that the second half needs. whole_backwards: there are also backwards
  // whose halves are together.
  // deferred_heads: micro-batches whose gradient of the output weight may be put off at once.
  void allocate(Arena& activations, int slots, int stashes, bool whole_backwards, int deferred_heads = 0);
  // Bytes of scratch that forward and backward of such stages need, and the logits of one position.
  static int64_t scratch_bytes(const GptShape& shape);

  Tensor tokens(int slot) const { return slot_at(slot).tokens; }  // [s, b] int32: whoever runs the stage fills it
  Tensor labels(int slot) const { return slot_at(slot).labels; }  // [s, b] int32: likewise
  // [1] int64, null without dropout: likewise, for passes that train.
  Tensor first_sample(int slot) const { return slot_at(slot).first_sample; }
  Residual input(int slot) const { return slot_at(slot).input; }  // [s*, b, h]: the previous stage's output goes here
  void set_input(int slot, Residual input) { slots_.at(static_cast<size_t>(slot)).input = input; }
  Residual output(int slot) const;                                    // [s*, b, h]: goes to the next stage
  Vocab logits(int slot) const { return slot_at(slot).head.logits; }  // [s, b, padded_vocab/t], after forward

  // On the last stage, loss[0] (fp32) += loss_scale * sum over the tokens of the cross-entropy.
  void forward(Context& ctx, int slot, const MicroBatch& micro_batch, Tensor loss) const;
  // grad: [s*, b, h], the gradient of the output (ignored on the last stage), becomes that of the input (undefined on
  // the first stage). stash: where the gradients go that a deferred weight-gradient half reads; -1 where it is not.
  void backward(Context& ctx, int slot, int stash, const MicroBatch& micro_batch, Residual grad);
  // The gradients of the output weight that backward has put off, in its order.
  void run_deferred(Context& ctx);
  // NaN into everything the slot holds.
  void poison(Context& ctx, int slot) const;

  Param* word_embedding() { return embedding_ ? &embedding_->word_weight() : nullptr; }
  const GptShape& shape() const { return shape_; }
  const StageRange& range() const { return range_; }

 private:
  struct Slot {
    Tensor tokens, labels, first_sample;
    Residual input;
    std::vector<BlockActivations> blocks;
    HeadActivations head;
  };
  // What the gradient of the output weight reads.
  struct DeferredHead {
    Residual norm_out;  // [s*, b, h]
    Vocab d_logits;     // [s, b, padded_vocab/t]
  };
  const Slot& slot_at(int slot) const { return slots_.at(static_cast<size_t>(slot)); }
  // What a deferred weight-gradient half reads of one block beside what its slot keeps.
  struct Stash {
    BlockGradients gradients;
    BlockActivations recomputed;
  };
  struct BlockPlan {
    BlockParts lost;        // between forward and backward
    size_t place_in_group;  // of its RecomputeGroup
  };
  // Those of one block: what the slot keeps, and where the rest is written. stash: -1 but in a backward whose halves
  // are apart.
  BlockActivations activations(const Slot& slot, int stash, size_t block) const;
  int block_unit(size_t block) const { return first_block_unit_ + static_cast<int>(block); }
  Residual block_input(const Slot& slot, int stash, size_t block) const {
    return block == 0 ? slot.input : activations(slot, stash, block - 1).out;
  }

  GptShape shape_;
  StageRange range_;
  int embedding_unit_ = -1, first_block_unit_ = -1, head_unit_ = -1;  // of the ParamList
  std::optional<Embedding> embedding_;
  std::deque<Block> blocks_;
  std::optional<Head> head_;
  std::vector<RecomputeGroup> groups_;
  std::vector<BlockPlan> plan_;  // [block]
  std::vector<Slot> slots_;
  std::vector<BlockActivations> recomputed_;  // by place in a group: what no slot keeps, of all groups in turn
  BlockGradients gradients_;                  // of all blocks in turn, where the halves are together
  std::vector<std::vector<Stash>> stashes_;   // [stash][block]
  std::vector<DeferredHead> deferred_heads_;  // change places with a slot's tensors
  size_t heads_waiting_ = 0;                  // of deferred_heads_, from the first on
};

}  // namespace trivet
