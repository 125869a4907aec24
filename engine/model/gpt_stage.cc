#include "engine/model/gpt_stage.h"

#include <algorithm>

namespace trivet {

GptStage::GptStage(ParamList& params, const GptShape& shape, const StageRange& range, uint64_t seed)
    : shape_(shape), range_(range) {
  if (range_.has_embedding) embedding_.emplace(params, shape_, seed);
  for (int64_t i = 0; i < range_.num_layers; ++i) blocks_.emplace_back(params, shape_, range_.first_layer + i, seed);
  if (range_.has_head)
    head_.emplace(params, shape_, shape_.tied_embeddings && embedding_ ? &embedding_->word_weight() : nullptr);
}

void GptStage::allocate(Arena& activations, int slots, bool halves_apart) {
  BlockGradients shared;
  if (!halves_apart && !blocks_.empty()) shared = allocate_block_gradients(activations, shape_, false);
  for (int i = 0; i < slots; ++i) {
    Slot slot;
    if (range_.has_embedding) slot.tokens = activations.allocate(DType::i32, {shape_.seq, shape_.micro_batch});
    if (range_.has_head) slot.labels = activations.allocate(DType::i32, {shape_.seq, shape_.micro_batch});
    slot.input = activations.allocate(shape_.dtype, shape_.hidden_shape());
    for (size_t block = 0; block < blocks_.size(); ++block) {
      slot.blocks.push_back(allocate_block_activations(activations, shape_));
      slot.gradients.push_back(halves_apart ? allocate_block_gradients(activations, shape_, true) : shared);
    }
    if (range_.has_head) slot.head = allocate_head_activations(activations, shape_);
    slots_.push_back(std::move(slot));
  }
}

int64_t GptStage::scratch_bytes(const GptShape& p) {
  const auto bytes = [&](DType dtype, int64_t n) { return Scratch::padded(n * size_of(dtype)); };
  const int64_t local = bytes(p.dtype, p.hidden_shape().numel());                         // [s*, b, h]
  const int64_t whole = p.sequence_parallel ? bytes(p.dtype, p.tokens() * p.hidden) : 0;  // a gathered [s, b, h]
  const int64_t heads = bytes(p.dtype, p.tokens() * p.hidden / p.t);                      // [s, b, h/t]
  const int64_t block_backward = local + heads + whole;
  const int64_t cross_entropy = bytes(DType::f32, 2 * p.tokens()) + (p.t > 1 ? bytes(DType::f32, p.tokens()) : 0);
  return std::max(block_backward, cross_entropy);
}

Tensor GptStage::output(int slot) const { return block_input(slot_at(slot), blocks_.size()); }

void GptStage::forward_blocks(Context& ctx, const Slot& slot, const MicroBatch& micro_batch) const {
  if (embedding_) embedding_->forward(ctx, slot.tokens, micro_batch, slot.input);
  for (size_t i = 0; i < blocks_.size(); ++i)
    blocks_[i].forward(ctx, block_input(slot, i), micro_batch, slot.blocks[i]);
}

void GptStage::forward(Context& ctx, int slot_index, const MicroBatch& micro_batch, Tensor loss) const {
  const Slot& slot = slot_at(slot_index);
  forward_blocks(ctx, slot, micro_batch);
  if (head_) head_->forward(ctx, block_input(slot, blocks_.size()), slot.labels, micro_batch, slot.head, loss);
}

void GptStage::forward_logits(Context& ctx, int slot_index, const MicroBatch& micro_batch) const {
  const Slot& slot = slot_at(slot_index);
  forward_blocks(ctx, slot, micro_batch);
  if (head_) head_->logits(ctx, block_input(slot, blocks_.size()), slot.head);
}

void GptStage::backward(Context& ctx, int slot_index, const MicroBatch& micro_batch, Tensor grad) const {
  const Slot& slot = slot_at(slot_index);
  if (head_) head_->backward(ctx, block_input(slot, blocks_.size()), slot.labels, micro_batch, slot.head, grad);
  for (size_t i = blocks_.size(); i-- > 0;)
    blocks_[i].backward(ctx, block_input(slot, i), grad, micro_batch, slot.blocks[i], slot.gradients[i]);
  if (embedding_) embedding_->backward(ctx, slot.tokens, micro_batch, grad);
}

}  // namespace trivet
