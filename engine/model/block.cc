#include "engine/model/block.h"

#include <array>
#include <cmath>

#include "engine/model/modules.h"
#include "parallel/context/attention.h"

namespace trivet {

// ---- memory

namespace {

struct Entry {
  Tensor& tensor;
  Shape (GptShape::*shape)() const;
  bool BlockParts::*writer;
  bool fp32 = false;        // else the model's dtype
  Tensor* scale = nullptr;  // for an operand, which may be saved as FP8 codes
};

// The single list of a block's activations.
std::array<Entry, 16> list(BlockActivations& a) {
  using P = BlockParts;
  using S = GptShape;
  return {{{a.ln1_out.values, &S::hidden_shape, &P::norms, false, &a.ln1_out.scale},
           {a.ln1_mean, &S::means_shape, &P::norms, true},
           {a.ln1_rstd, &S::rows_shape, &P::norms, true},
           {a.qkv, &S::qkv_shape, &P::qkv},
           {a.qk, &S::qk_shape, &P::qkv},
           {a.qk_mean, &S::qk_means_shape, &P::qkv, true},
           {a.qk_rstd, &S::qk_rows_shape, &P::qkv, true},
           {a.attention_out, &S::heads_shape, &P::core_attention},
           {a.lse, &S::softmax_shape, &P::core_attention, true},
           {a.middle, &S::hidden_shape, &P::middle},
           {a.ln2_out.values, &S::hidden_shape, &P::norms, false, &a.ln2_out.scale},
           {a.ln2_mean, &S::means_shape, &P::norms, true},
           {a.ln2_rstd, &S::rows_shape, &P::norms, true},
           {a.fc1_out, &S::fc1_shape, &P::mlp},
           {a.activated.values, &S::ffn_shape, &P::mlp, false, &a.activated.scale},
           {a.out, &S::hidden_shape, &P::out}}};
}

}  // namespace

BlockActivations allocate_block_activations(Arena& arena, const GptShape& p, const BlockParts& parts, bool as_codes) {
  BlockActivations a;
  for (const Entry& entry : list(a)) {
    if (!(parts.*entry.writer)) continue;
    const bool codes = as_codes && entry.scale;
    entry.tensor = arena.allocate(entry.fp32 ? DType::f32 : codes ? DType::e4m3 : p.dtype, (p.*entry.shape)());
    if (codes) *entry.scale = arena.allocate(DType::f32, {1});
  }
  return a;
}

BlockActivations merge(BlockActivations saved, BlockActivations others) {
  const auto into = list(saved), from = list(others);
  for (size_t i = 0; i < into.size(); ++i) {
    if (into[i].tensor) continue;
    into[i].tensor = from[i].tensor;
    if (into[i].scale) *into[i].scale = *from[i].scale;
  }
  return saved;
}

std::vector<Tensor> tensors_of(BlockActivations acts) {
  std::vector<Tensor> tensors;
  for (const Entry& entry : list(acts))
    if (entry.tensor) tensors.push_back(entry.tensor);
  return tensors;
}

BlockActivations front_of(BlockActivations acts, const GptShape& p, const PositionRange& positions) {
  const GptShape shape = p.with_positions(positions.count);
  const GptShape known = p.with_positions(positions.first + positions.count);
  for (const Entry& entry : list(acts)) {
    const bool keys = &entry.tensor == &acts.qkv || &entry.tensor == &acts.qk;
    entry.tensor = entry.tensor.front(((keys ? known : shape).*entry.shape)());
  }
  return acts;
}

BlockGradients allocate_block_gradients(Arena& arena, const GptShape& p, bool halves_apart) {
  BlockGradients g;
  g.qkv = Hidden(arena.allocate(p.dtype, p.qkv_shape()));
  g.fc1_out = Hidden(arena.allocate(p.dtype, p.fc1_shape()));
  if (halves_apart || p.training.hidden_dropout > 0) {
    g.proj_out = Residual(arena.allocate(p.dtype, p.hidden_shape()));
    g.fc2_out = Residual(arena.allocate(p.dtype, p.hidden_shape()));
  }
  return g;
}

// ---- its parts

namespace {

// Layers that write to the residual stream start with smaller weights: its variance must not grow with depth.
Init output_init(const GptShape& p) {
  const float scale =
      p.training.scale_output_layer_init ? 1.0f / std::sqrt(2.0f * static_cast<float>(p.num_layers)) : 1.0f;
  return {Init::normal, p.training.init_std * scale};
}

struct HeadStatistics {
  Tensor of_q, of_k;

  HeadStatistics(const Tensor& all, const AttentionSpec& heads) {
    const int64_t queries = all.numel() * heads.heads / (heads.heads + heads.kv_heads);
    of_q = all.slice(0, queries);
    of_k = all.slice(queries, all.numel() - queries);
  }
};

std::optional<HeadNorm> head_norm(ParamList& params, const GptShape& p, Module module, int64_t layer) {
  return p.qk_norm ? std::optional<HeadNorm>(std::in_place, params, name_of(module, layer), p) : std::nullopt;
}

// The rows that a pass writes: all of them or, in generation, those of the new positions.
Hidden new_rows(const Hidden& qkv, const MicroBatch& micro_batch) {
  const int64_t known = micro_batch.positions ? micro_batch.positions->first : 0;
  return qkv.slice(known, qkv.shape[0] - known);
}

Bias bias_of(const GptShape& p, bool any) {
  return !any ? Bias::none : p.decay_norms_and_biases ? Bias::decayed : Bias::kept;
}

}  // namespace

Block::Block(ParamList& params, const GptShape& p, int64_t layer, uint64_t dropout_seed, const Tensor& rotary)
    : shape_(p),
      rotary_(rotary),
      layer_(layer),
      dropout_seed_(dropout_seed),
      ln1_(params, name_of(Module::attention_norm, layer), p),
      qkv_(params, name_of(Module::qkv, layer), p.hidden, {p.attention.qkv_width()},
           {Init::normal, p.training.init_std}, bias_of(p, p.qkv_bias), p.qkv_overlap, p.fp8_of(layer)),
      q_norm_(head_norm(params, p, Module::q_norm, layer)),
      k_norm_(head_norm(params, p, Module::k_norm, layer)),
      proj_(params, name_of(Module::proj, layer), p.attention.width(), p.hidden, output_init(p), bias_of(p, p.biases),
            p.proj_overlap, p.fp8_of(layer)),
      ln2_(params, name_of(Module::mlp_norm, layer), p),
      fc1_(params, name_of(Module::fc1, layer), p.hidden, p.gated() ? Shape{2, p.ffn} : Shape{p.ffn},
           {Init::normal, p.training.init_std}, bias_of(p, p.biases), p.fc1_overlap, p.fp8_of(layer)),
      fc2_(params, name_of(Module::fc2, layer), p.ffn, p.hidden, output_init(p), bias_of(p, p.biases), p.fc2_overlap,
           p.fp8_of(layer)) {}

Dropout Block::dropout(DropoutSite site, const MicroBatch& micro_batch) const {
  return make_dropout(shape_, site, layer_, dropout_seed_, micro_batch);
}

QkvViews Block::packed(Hidden qkv) const {
  return qkv_views(qkv, shape_.local_heads(), shape_.attention.kv_heads / shape_.t);
}

QkvViews Block::heads_of(const BlockActivations& acts) const {
  QkvViews heads = packed(acts.qkv);
  if (!q_norm_) return heads;
  for (HeadsView* const view : {&heads.q, &heads.k}) {
    const HeadsLayout& z = view->layout;
    *view = {acts.qk, view->first, HeadsLayout::in_groups(z.s, z.b, z.groups, z.members, z.d, z.group - z.d)};
  }
  return heads;
}

void Block::rope(Context& ctx, const QkvViews& heads, const MicroBatch& micro_batch, int64_t count,
                 bool inverse) const {
  if (!rotary_) return;
  const Tensor& ids = micro_batch.position_ids;
  ctx.run(op::Rope{.q = last_positions(heads.q, count),
                   .k = last_positions(heads.k, count),
                   .table = ids ? rotary_ : rotary_.slice(heads.k.layout.s - count, count),
                   .inverse = inverse,
                   .ids = ids});
}

void Block::norm_and_rope(Context& ctx, const BlockActivations& acts, const MicroBatch& micro_batch,
                          int64_t count) const {
  const QkvViews heads = heads_of(acts);
  if (q_norm_) {
    const QkvViews raw = packed(acts.qkv);
    const HeadStatistics mean(acts.qk_mean, shape_.attention), rstd(acts.qk_rstd, shape_.attention);
    q_norm_->forward(ctx, last_positions(raw.q, count), last_positions(heads.q, count), mean.of_q, rstd.of_q);
    k_norm_->forward(ctx, last_positions(raw.k, count), last_positions(heads.k, count), mean.of_k, rstd.of_k);
  }
  rope(ctx, heads, micro_batch, count, false);
}

void Block::backward_from_rope(Context& ctx, const BlockActivations& acts, const MicroBatch& micro_batch,
                               Hidden grad) const {
  const QkvViews d = packed(grad), raw = packed(acts.qkv);
  rope(ctx, d, micro_batch, grad.shape[0], true);
  if (!q_norm_) return;
  const HeadStatistics mean(acts.qk_mean, shape_.attention), rstd(acts.qk_rstd, shape_.attention);
  q_norm_->backward(ctx, d.q, raw.q, mean.of_q, rstd.of_q, {}, d.q);
  k_norm_->backward(ctx, d.k, raw.k, mean.of_k, rstd.of_k, {}, d.k);
}

Operand<Place::residual> Block::normalise(Context& ctx, const LayerNorm& norm, Residual x,
                                          const Operand<Place::residual>& saved, Tensor mean, Tensor rstd,
                                          Scratch::Frame& frame) const {
  return Operands::save(ctx, saved, shape_.dtype, frame, [&](Residual y) { norm.forward(ctx, x, y, mean, rstd); });
}

Operand<Place::hidden> Block::fc1_and_activation(Context& ctx, const Operand<Place::residual>& x,
                                                 const BlockActivations& acts, Scratch::Frame& frame) const {
  return Operands::save(ctx, acts.activated, shape_.dtype, frame, [&](Hidden y) {
    if (!shape_.gated()) return fc1_.forward(ctx, x, y, acts.fc1_out, shape_.activation);  // in the GEMM's epilogue
    fc1_.forward(ctx, x, acts.fc1_out);
    ctx.run(op::ActivationForward{.x = acts.fc1_out, .y = y, .kind = shape_.activation});
  });
}

// ---- forward and backward

void Block::forward(Context& ctx, Residual x, const MicroBatch& micro_batch, const BlockActivations& acts,
                    const BlockParts& parts) const {
  const Hidden qkv = new_rows(acts.qkv, micro_batch);
  const int64_t positions = qkv.shape[0];
  {
    Scratch::Frame frame(ctx.scratch);

    // 1. Layer norm of x [s*, b, h].
    Operand<Place::residual> ln1_out = acts.ln1_out;
    if (parts.norms) ln1_out = normalise(ctx, ln1_, x, acts.ln1_out, acts.ln1_mean, acts.ln1_rstd, frame);

    // 2. Queries, keys and values [s, b, (a + 2g) d/t] of this rank's heads. Under sequence parallelism qkv gathers the
    //    positions.
    if (parts.qkv) {
      qkv_.forward(ctx, ln1_out, qkv);
      norm_and_rope(ctx, acts, micro_batch, positions);
    }
  }

  // 3. Attention, head by head: [s, b, a d/t]. Tensor ranks do not communicate; context ranks exchange keys.
  if (parts.core_attention) {
    QkvViews heads = heads_of(acts);
    heads.q = last_positions(heads.q, positions);
    attention_forward(ctx, heads, acts.attention_out, acts.lse, dropout(DropoutSite::attention, micro_batch),
                      micro_batch.starts);
  }

  // 4. proj reduces over the tensor group (g) and adds to the residual stream [s*, b, h].
  if (parts.middle)
    proj_.forward_onto(ctx, acts.attention_out, x, dropout(DropoutSite::attention_branch, micro_batch), acts.middle);

  // 5. The second branch: norm, fc1 [s, b, f/t], activation.
  Scratch::Frame frame(ctx.scratch);
  Operand<Place::residual> ln2_out = acts.ln2_out;
  Operand<Place::hidden> activated = acts.activated;
  if (parts.norms) ln2_out = normalise(ctx, ln2_, acts.middle, acts.ln2_out, acts.ln2_mean, acts.ln2_rstd, frame);
  if (parts.mlp) activated = fc1_and_activation(ctx, ln2_out, acts, frame);

  // 6. fc2 reduces as proj does.
  if (parts.out)
    fc2_.forward_onto(ctx, activated, acts.middle, dropout(DropoutSite::mlp_branch, micro_batch), acts.out);
}

void Block::backward(Context& ctx, Residual x, Residual grad, const MicroBatch& micro_batch,
                     const BlockActivations& acts, const BlockGradients& grads) const {
  // The gradient that enters a branch: the residual stream's, after the branch's dropout backward. It is a copy if the
  // weight half runs later, because `grad` changes in the meantime.
  const auto branch_grad = [&](DropoutSite site, Residual buffer) {
    if (!buffer) return grad;
    ctx.run(op::DropoutBackward{.dout = grad, .dropout = dropout(site, micro_batch), .dx = buffer});
    return buffer;
  };
  Scratch::Frame frame(ctx.scratch);
  const Residual d_norm(frame.tensor(shape_.dtype, shape_.hidden_shape()));  // gradient of a layer norm's output

  // 6. fc2: every rank needs the gradient at all positions, which sequence parallelism gathers. A linear layer computes
  //    its input gradient, and adds its weight gradient now or, in a zero-bubble schedule, later. Then comes the
  //    backward of step 5's activation.
  const Residual d_fc2 = branch_grad(DropoutSite::mlp_branch, grads.fc2_out);
  if (shape_.gated()) {
    Scratch::Frame mlp(ctx.scratch);
    const Hidden d_activated(mlp.tensor(shape_.dtype, acts.activated.values.shape));
    fc2_.backward(ctx, acts.activated, d_fc2, d_activated);
    ctx.run(
        op::ActivationBackward{.x = acts.fc1_out, .dy = d_activated, .dx = grads.fc1_out, .kind = shape_.activation});
  } else {
    fc2_.backward(ctx, acts.activated, d_fc2, grads.fc1_out, acts.fc1_out, shape_.activation);
  }

  // 5. fc1: each rank's columns give a partial gradient of the norm's output, reduced over the tensor group (f).
  //    Then the norm, which adds the residual stream's gradient.
  fc1_.backward(ctx, acts.ln2_out, grads.fc1_out, d_norm);
  ln2_.backward(ctx, d_norm, acts.middle, acts.ln2_mean, acts.ln2_rstd, grad, grad);

  // 4. proj, like fc2.
  const Residual d_proj = branch_grad(DropoutSite::attention_branch, grads.proj_out);
  const Hidden d_attention(frame.tensor(shape_.dtype, acts.attention_out.shape));
  proj_.backward(ctx, acts.attention_out, d_proj, d_attention);

  // 3. Attention recomputes its probabilities from queries, keys and lse.
  attention_backward(ctx, d_attention, heads_of(acts), acts.attention_out, acts.lse, packed(grads.qkv),
                     dropout(DropoutSite::attention, micro_batch), micro_batch.starts);

  // 2. and 1.: back through RoPE and the head norms, then as in 5.
  backward_from_rope(ctx, acts, micro_batch, grads.qkv);
  qkv_.backward(ctx, acts.ln1_out, grads.qkv, d_norm);
  ln1_.backward(ctx, d_norm, x, acts.ln1_mean, acts.ln1_rstd, grad, grad);
}

}  // namespace trivet
