// GptShape: a model and one rank's part of it, in the form that the layers use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "engine/model/spec.h"
#include "kernels/base/dtype.h"
#include "kernels/layer_ops.h"
#include "parallel/context/cut.h"
#include "parallel/param.h"
#include "parallel/tensor/fp8_mode.h"
#include "parallel/tensor/overlap_mode.h"

namespace trivet {

struct GptShape : ModelSpec {
  int64_t padded_vocab = 0;  // a multiple of t
  int64_t micro_batch = 0;
  int t = 1, tensor_rank = 0;
  int c = 1, context_rank = 0;
  CpCommType cp_comm_type = CpCommType::p2p;
  bool sequence_parallel = false;
  DType dtype = DType::f32;        // of weights and activations
  int64_t cross_entropy_rows = 0;  // rows of logits (of s b) held at a time; 0: all
  bool decay_norms_and_biases = false;
  Fp8Mode fp8{};  // of the blocks' linear layers, without the blocks excluded at either end:
  int64_t bf16_layers_at_start = 0, bf16_layers_at_end = 0;
  bool keeps_fp8_weights = true;                                  // between uses; false: weights are streamed
  bool reset_position_ids = false, reset_attention_mask = false;  // restart at each document of a packed sample
  TensorOverlap qkv_overlap = TensorOverlap::none, proj_overlap = TensorOverlap::none;
  TensorOverlap fc1_overlap = TensorOverlap::none, fc2_overlap = TensorOverlap::none;

  // The number of positions: in a whole sequence; on this context rank; in this rank's residuals (s*).
  int64_t whole_seq() const { return seq; }
  int64_t rank_seq() const { return cut().rows(); }
  int64_t local_seq() const { return sequence_parallel ? rank_seq() / t : rank_seq(); }
  int64_t local_heads() const { return attention.heads / t; }
  int64_t tokens() const { return rank_seq() * micro_batch; }
  ContextCut cut() const { return {seq, c, context_rank}; }
  // The positions of the residuals' rows.
  PositionMap residual_positions() const {
    return cut().positions().from(sequence_parallel ? tensor_rank * local_seq() : 0);
  }
  // The shape of a pass over n positions, all of them on this rank.
  GptShape with_positions(int64_t n) const {
    GptShape shape = *this;
    shape.seq = n;
    shape.c = 1, shape.context_rank = 0;
    return shape;
  }
  Fp8Mode fp8_of(int64_t layer) const {
    return layer < bf16_layers_at_start || layer >= num_layers - bf16_layers_at_end ? Fp8Mode{} : fp8;
  }
  bool drops() const { return training.hidden_dropout > 0 || training.attention_dropout > 0; }
  bool loss_in_chunks() const { return cross_entropy_rows > 0; }
  int64_t logit_rows() const { return loss_in_chunks() ? std::min(cross_entropy_rows, tokens()) : tokens(); }
  bool overlaps_tensor_comm() const {
    return qkv_overlap != TensorOverlap::none || proj_overlap != TensorOverlap::none ||
           fc1_overlap != TensorOverlap::none || fc2_overlap != TensorOverlap::none;
  }
  // Shapes of one rank's activations; s* is s, or s/t under sequence parallelism.
  Shape hidden_shape() const { return {local_seq(), micro_batch, hidden}; }  // [s*, b, h]
  Shape rows_shape() const { return {local_seq(), micro_batch}; }            // [s*, b]
  Shape means_shape() const { return norm == Norm::rmsnorm ? Shape{0} : rows_shape(); }
  Shape qkv_shape() const { return {rank_seq(), micro_batch, attention.qkv_width() / t}; }      // [s, b, (a + 2g) d/t]
  Shape heads_shape() const { return {rank_seq(), micro_batch, attention.width() / t}; }        // [s, b, a d/t]
  Shape softmax_shape() const { return {micro_batch, local_heads(), rank_seq()}; }              // [b, a/t, s]
  Shape ffn_shape() const { return {rank_seq(), micro_batch, ffn / t}; }                        // [s, b, f/t]
  Shape fc1_shape() const { return {rank_seq(), micro_batch, (gated() ? 2 : 1) * (ffn / t)}; }  // [s, b, f/t or 2 f/t]
  // Normalised query and key heads: their number, their shape [s, b, (a + g) d/t], and the per-head statistics' shapes.
  int64_t local_qk() const { return qk_norm ? (attention.heads + attention.kv_heads) / t : 0; }
  Shape qk_shape() const { return {rank_seq(), micro_batch, local_qk() * attention.head_width}; }
  Shape qk_rows_shape() const { return {local_qk() * tokens()}; }
  Shape qk_means_shape() const { return norm == Norm::rmsnorm ? Shape{0} : qk_rows_shape(); }
};

// The positions of a forward pass over a growing text. The pass reads the keys and values that earlier passes saved for
// the positions before `first`. `first` and `count` are multiples of t under sequence parallelism.
struct PositionRange {
  int64_t first = 0, count = 0;
  int64_t read = 0;  // index in this range of the position whose logits are wanted
};

// The inputs of a pass over one micro-batch.
struct MicroBatch {
  Tensor first_sample = {};        // [1] int64 on the device: its first sample's global index, which keys the dropout
  bool training = true;            // false: no dropout
  float loss_scale = 1;            // weight of each token's loss, in the loss and in the gradient
  bool defer_head_weight = false;  // GptStage::run_deferred computes the output weight's gradient
  std::optional<PositionRange> positions = {};  // empty: whole sequences, as in training
  // [s, b] int32 each, for this rank's positions; null unless the shape resets them. position_ids: the position of each
  // token in its document; starts: the first position of the whole sequence that the token attends to.
  Tensor position_ids = {}, starts = {};
};

// The model's dropout sites. Their numbers are the same under every layout.
enum class DropoutSite : uint64_t { embedding = 0, attention = 1, attention_branch = 2, mlp_branch = 3 };

inline Dropout make_dropout(const GptShape& shape, DropoutSite site, int64_t layer, uint64_t seed,
                            const MicroBatch& micro_batch) {
  const float probability =
      site == DropoutSite::attention ? shape.training.attention_dropout : shape.training.hidden_dropout;
  if (!micro_batch.training || probability == 0) return {};
  return {.probability = probability,
          .seed = seed,
          .site = static_cast<uint64_t>(layer) * 4 + static_cast<uint64_t>(site),
          .first_sample = micro_batch.first_sample,
          .seq_length = shape.whole_seq(),
          .positions = site == DropoutSite::attention ? shape.cut().positions() : shape.residual_positions(),
          .keys = {},
          .first_head = shape.tensor_rank * shape.local_heads(),
          .total_heads = shape.attention.heads};
}

}  // namespace trivet
