#include "engine/model/gpt_stage.h"

#include <fmt/format.h>
#include <limits>

#include "engine/model/spec.h"

namespace trivet {

GptStage::GptStage(ParamList& params, const GptShape& shape, const StageRange& range, uint64_t seed,
                   const Recompute& recompute, Param* word_embedding)
    : shape_(shape), range_(range), groups_(recompute.groups(range.num_layers)) {
  expect_runs(shape_);
  for (const RecomputeGroup& group : groups_) {
    for (int64_t i = 0; i < group.count; ++i) plan_.push_back({group.parts, static_cast<size_t>(i)});
    plan_.back().recomputed.out = false;  // the input of the next group or stage is saved
  }
  const int stage = params.units().empty() ? 0 : params.units().back().stage + 1;
  if (range_.has_embedding) {
    embedding_unit_ = params.begin_unit(stage, "embedding");
    embedding_.emplace(params, shape_, seed);
    word_embedding = &embedding_->word_weight();
  }
  for (int64_t i = 0; i < range_.num_layers; ++i) {
    const int unit = params.begin_unit(stage, fmt::format("layer {}", range_.first_layer + i));
    if (i == 0) first_block_unit_ = unit;
    blocks_.emplace_back(params, shape_, range_.first_layer + i, seed, rotary_);
  }
  if (range_.has_head) {
    head_unit_ = params.begin_unit(stage, "head");
    if (!shape_.tied_embeddings) word_embedding = nullptr;
    if (word_embedding) params.share(*word_embedding);
    head_.emplace(params, shape_, word_embedding);
  }
}

void GptStage::allocate(Arena& activations, int slots, int stashes, bool whole_backwards, int deferred_heads) {
  for (int i = 0; i < slots; ++i) {
    Slot slot;
    const auto ids = [&](bool any) {
      return any ? activations.allocate(DType::i32, {shape_.rank_seq(), shape_.micro_batch}) : Tensor{};
    };
    slot.tokens = ids(range_.has_embedding);
    slot.labels = ids(range_.has_head);
    slot.position_ids = ids(shape_.reset_position_ids && (range_.has_embedding || shape_.positions == Positions::rope));
    slot.starts = ids(shape_.reset_attention_mask);
    if (shape_.drops()) slot.first_sample = activations.allocate(DType::i64, {1});
    slot.input = Residual(activations.allocate(shape_.dtype, shape_.hidden_shape()));
    for (size_t block = 0; block < plan_.size(); ++block)
      slot.blocks.push_back(
          allocate_block_activations(activations, shape_, plan_[block].recomputed.others(), saves_codes(block)));
    if (range_.has_head) {
      const bool shares = shape_.loss_in_chunks() && i > 0;
      slot.head = allocate_head_activations(activations, shape_, shares ? slots_.front().head.logits : Vocab{});
    }
    slots_.push_back(std::move(slot));
  }
  for (int i = 0; range_.has_head && i < deferred_heads; ++i) {
    const HeadActivations spare = allocate_head_activations(activations, shape_);
    deferred_heads_.push_back({spare.norm_out, spare.logits});
  }
  if (blocks_.empty()) return;
  if (shape_.positions == Positions::rope)
    rotary_ = activations.allocate(
        DType::f32, {shape_.reset_position_ids ? shape_.whole_seq() : shape_.rank_seq(), shape_.rotary.width});
  for (size_t place = 0; place < static_cast<size_t>(groups_.front().count); ++place)
    recomputed_.push_back(allocate_block_activations(activations, shape_, plan_[place].recomputed, false));
  if (whole_backwards) gradients_ = allocate_block_gradients(activations, shape_, false);
  for (int i = 0; i < stashes; ++i) {
    std::vector<Stash>& stash = stashes_.emplace_back();
    for (const BlockPlan& plan : plan_)
      stash.push_back({allocate_block_gradients(activations, shape_, true),
                       allocate_block_activations(activations, shape_, plan.recomputed, false)});
  }
}

BlockActivations GptStage::activations(const Slot& slot, int stash, size_t block) const {
  if (stash >= 0) return merge(slot.blocks[block], stashes_.at(static_cast<size_t>(stash))[block].recomputed);
  return merge(slot.blocks[block], recomputed_[plan_[block].place_in_group]);
}

Residual GptStage::output(int slot) const { return block_input(slot_at(slot), -1, blocks_.size()); }

void GptStage::fill_rotary_once(Context& ctx) {
  if (!rotary_ || std::exchange(rotary_filled_, true)) return;
  (shape_.reset_position_ids ? PositionMap{} : shape_.cut().positions())
      .for_runs(rotary_.shape[0], [&](int64_t row, int64_t count, int64_t first) {
        ctx.run(op::RotaryTable{.rotary = shape_.rotary, .table = rotary_.slice(row, count), .first = first});
      });
}

void GptStage::forward(Context& ctx, int slot_index, const MicroBatch& micro_batch, Tensor loss) {
  ctx.quantises = !micro_batch.positions;
  fill_rotary_once(ctx);
  // The pass reads and writes the whole slot or, in generation, views of some positions.
  const Slot& slot = slot_at(slot_index);
  const PositionRange positions = micro_batch.positions.value_or(PositionRange{0, shape_.rank_seq()});
  const GptShape shape = shape_.with_positions(positions.count);
  const auto input_of = [&](size_t block) {
    return Residual(block_input(slot, -1, block).front(shape.hidden_shape()));
  };
  const auto ids = [&](const Tensor& buffer) { return buffer.front({shape.rank_seq(), shape.micro_batch}); };
  ctx.units.begin_pass(Pass::forward);

  // 1. Tokens [s, b] to the residual stream [s*, b, h]; on later stages the executor has received it.
  if (embedding_) {
    ctx.before_forward(embedding_unit_);  // waits for its weights, if they are sharded
    embedding_->forward(ctx, ids(slot.tokens), micro_batch, input_of(0));
  }

  // 2. The blocks. Each writes the input of the next.
  for (size_t i = 0; i < blocks_.size(); ++i) {
    ctx.before_forward(block_unit(i));
    blocks_[i].forward(ctx, input_of(i), micro_batch, front_of(activations(slot, -1, i), shape_, positions));
  }

  // 3. On the last stage: norm, logits [s b, vocab/t] and loss.
  if (head_) {
    ctx.before_forward(head_unit_);
    head_->forward(ctx, input_of(blocks_.size()), ids(slot.labels), micro_batch, front_of(slot.head, shape), loss);
  }
  ctx.units.end_pass(Pass::forward);
}

void GptStage::defer_head(Slot& slot) {
  DeferredHead& spare = deferred_heads_.at(heads_waiting_++);
  std::swap(spare.norm_out, slot.head.norm_out);
  std::swap(spare.d_logits, slot.head.logits);
}

void GptStage::run_deferred(Context& ctx) {
  for (size_t i = 0; i < heads_waiting_; ++i) {
    head_->backward_weight(ctx, deferred_heads_[i].norm_out, deferred_heads_[i].d_logits);
    ctx.units.after_backward(head_unit_);
  }
  heads_waiting_ = 0;
}

void GptStage::recompute(Context& ctx, const RecomputeGroup& group, const Slot& slot, int stash,
                         const MicroBatch& micro_batch) {
  if (!group.parts.any()) return;
  const ScopedPhase span(ctx.compute, SpanInfo{"recompute", Category::phase});
  for (auto i = static_cast<size_t>(group.first); i < static_cast<size_t>(group.first + group.count); ++i) {
    const BlockParts& parts = plan_[i].recomputed;
    if (parts.any()) ctx.before_forward(block_unit(i));
    blocks_[i].forward(ctx, block_input(slot, stash, i), micro_batch, activations(slot, stash, i), parts);
  }
}

void GptStage::backward(Context& ctx, int slot_index, int stash, const MicroBatch& micro_batch, Residual grad,
                        Tensor loss) {
  Slot& slot = slots_.at(static_cast<size_t>(slot_index));
  // A unit's gradients may be reduced once its weight halves, which may be deferred, have run.
  const auto done = [&](int unit) { ctx.weight_grads.push([&ctx, unit] { ctx.units.after_backward(unit); }); };
  ctx.units.begin_pass(Pass::backward);

  // 3. Backward from the loss; on earlier stages the executor has received `grad`.
  if (head_) {
    ctx.before_backward(head_unit_);
    head_->backward(ctx, output(slot_index), slot.labels, micro_batch, slot.head, grad, loss);
    if (micro_batch.defer_head_weight) defer_head(slot);
    else done(head_unit_);
  }

  // 2. The blocks, last to first, updating `grad` in place. Unsaved activations are recomputed group by group.
  for (size_t g = groups_.size(); g-- > 0;) {
    const RecomputeGroup& group = groups_[g];
    recompute(ctx, group, slot, stash, micro_batch);
    const auto first = static_cast<size_t>(group.first);
    for (size_t i = first + static_cast<size_t>(group.count); i-- > first;) {
      ctx.before_backward(block_unit(i));
      blocks_[i].backward(ctx, block_input(slot, stash, i), grad, micro_batch, activations(slot, stash, i),
                          stash < 0 ? gradients_ : stashes_.at(static_cast<size_t>(stash))[i].gradients);
      done(block_unit(i));
    }
  }

  // 1. Backward of the embedding.
  if (embedding_) {
    ctx.before_backward(embedding_unit_);
    embedding_->backward(ctx, slot.tokens, micro_batch, grad);
    done(embedding_unit_);
  }
  ctx.weight_grads.push([&ctx] { ctx.units.end_pass(Pass::backward); });
}

void GptStage::poison(Context& ctx, int slot_index) const {
  const Slot& slot = slot_at(slot_index);
  std::vector<Tensor> held{slot.input, slot.head.norm_out, slot.head.norm_mean, slot.head.norm_rstd, slot.head.logits};
  const auto add = [&](const BlockActivations& acts) {
    for (const Tensor& tensor : tensors_of(acts)) held.push_back(tensor);
  };
  for (const BlockActivations& acts : slot.blocks) add(acts);
  for (const BlockActivations& acts : recomputed_) add(acts);
  for (const Tensor& tensor : held)
    if (tensor) ctx.run(op::Fill{tensor, std::numeric_limits<float>::quiet_NaN()});
}

}  // namespace trivet
