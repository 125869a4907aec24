#include "engine/model/gpt_stage.h"

#include <algorithm>
#include <limits>

namespace trivet {

GptStage::GptStage(ParamList& params, const GptShape& shape, const StageRange& range, uint64_t seed,
                   const Param* word_embedding)
    : shape_(shape), range_(range) {
  if (range_.has_embedding) {
    embedding_.emplace(params, shape_, seed);
    word_embedding = &embedding_->word_weight();
  }
  for (int64_t i = 0; i < range_.num_layers; ++i) blocks_.emplace_back(params, shape_, range_.first_layer + i, seed);
  if (range_.has_head) head_.emplace(params, shape_, shape_.tied_embeddings ? word_embedding : nullptr);
}

void GptStage::allocate(Arena& activations, int slots, int stashes, bool whole_backwards) {
  for (int i = 0; i < slots; ++i) {
    Slot slot;
    if (range_.has_embedding) slot.tokens = activations.allocate(DType::i32, {shape_.seq, shape_.micro_batch});
    if (range_.has_head) slot.labels = activations.allocate(DType::i32, {shape_.seq, shape_.micro_batch});
    slot.input = activations.allocate(shape_.dtype, shape_.hidden_shape());
    for (size_t block = 0; block < blocks_.size(); ++block)
      slot.blocks.push_back(allocate_block_activations(activations, shape_));
    if (range_.has_head) slot.head = allocate_head_activations(activations, shape_);
    slots_.push_back(std::move(slot));
  }
  if (blocks_.empty()) return;
  if (whole_backwards) gradients_ = allocate_block_gradients(activations, shape_, false);
  for (int i = 0; i < stashes; ++i) {
    std::vector<BlockGradients>& stash = stashes_.emplace_back();
    for (size_t block = 0; block < blocks_.size(); ++block)
      stash.push_back(allocate_block_gradients(activations, shape_, true));
  }
}

int64_t GptStage::scratch_bytes(const GptShape& p) {
  const auto bytes = [&](DType dtype, int64_t n) { return Scratch::padded(n * size_of(dtype)); };
  const int64_t local = bytes(p.dtype, p.hidden_shape().numel());                         // [s*, b, h]
  const int64_t whole = p.sequence_parallel ? bytes(p.dtype, p.tokens() * p.hidden) : 0;  // a gathered [s, b, h]
  const int64_t heads = bytes(p.dtype, p.tokens() * p.hidden / p.t);                      // [s, b, h/t]
  const int64_t block_backward = local + heads + whole;
  const int64_t cross_entropy = bytes(DType::f32, 2 * p.tokens()) + (p.t > 1 ? bytes(DType::f32, p.tokens()) : 0);
  const int64_t one_row_of_logits = bytes(DType::f32, p.padded_vocab);  // of Trainer::next_token_logits
  return std::max({block_backward, cross_entropy, one_row_of_logits});
}

Tensor GptStage::output(int slot) const { return block_input(slot_at(slot), blocks_.size()); }

void GptStage::forward(Context& ctx, int slot_index, const MicroBatch& micro_batch, Tensor loss) const {
  const Slot& slot = slot_at(slot_index);
  if (embedding_) embedding_->forward(ctx, slot.tokens, micro_batch, slot.input);
  for (size_t i = 0; i < blocks_.size(); ++i)
    blocks_[i].forward(ctx, block_input(slot, i), micro_batch, slot.blocks[i]);
  if (head_) head_->forward(ctx, block_input(slot, blocks_.size()), slot.labels, micro_batch, slot.head, loss);
}

void GptStage::backward(Context& ctx, int slot_index, int stash, const MicroBatch& micro_batch, Tensor grad) const {
  const Slot& slot = slot_at(slot_index);
  if (head_) head_->backward(ctx, block_input(slot, blocks_.size()), slot.labels, micro_batch, slot.head, grad);
  for (size_t i = blocks_.size(); i-- > 0;)
    blocks_[i].backward(ctx, block_input(slot, i), grad, micro_batch, slot.blocks[i],
                        stash < 0 ? gradients_ : stashes_.at(static_cast<size_t>(stash))[i]);
  if (embedding_) embedding_->backward(ctx, slot.tokens, micro_batch, grad);
}

void GptStage::poison(Context& ctx, int slot_index) const {
  const Slot& slot = slot_at(slot_index);
  std::vector<Tensor> held{slot.input, slot.head.norm_out, slot.head.norm_mean, slot.head.norm_rstd, slot.head.logits};
  for (const BlockActivations& a : slot.blocks)
    held.insert(held.end(), {a.ln1_out, a.ln1_mean, a.ln1_rstd, a.qkv, a.attention_out, a.lse, a.middle, a.ln2_out,
                             a.ln2_mean, a.ln2_rstd, a.fc1_out, a.gelu_out, a.out});
  for (const Tensor& tensor : held)
    if (tensor) ctx.ops.fill(tensor, std::numeric_limits<float>::quiet_NaN(), ctx.compute);
}

}  // namespace trivet
