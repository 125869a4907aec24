// Multi-head self-attention: the ops. The kernels are in attention_flash*.cu and attention_plain.cu.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_tile_map.h"
#include "kernels/cuda/launch.h"

namespace trivet {
namespace {

// The arguments that both passes share.
template <class Attention>
AttentionArgs args_of(const Attention& op) {
  return {.qkv = op.qkv,
          .out = op.part.rows(op.out, op.qkv.q.layout),
          .lse = op.lse.template as<float>(),
          .dropout = op.dropout,
          .causal = op.causal,
          .part = op.part,
          .documents = op.documents};
}

// Tensor cores work on tiles of 16 rows. With fewer queries after cached keys, as in text generation, most of the work
// would be wasted on empty rows, in one block per head. The plain kernels use one warp per query per head.
constexpr int64_t kFewestAfterOthers = 16;

// True if the tensor-core kernels support type, head size, alignment and number of queries. Fails if no kernel does.
bool by_flash(const char* op, const AttentionArgs& a) {
  if (flash_attention_has(a.dtype(), a.d()) && (a.past() == 0 || a.s() >= kFewestAfterOthers) &&
      heads_are_aligned(a.qkv.q, a.qkv.k, a.qkv.v, a.out, a.dout, a.dqkv.q, a.dqkv.k, a.dqkv.v))
    return true;
  if (a.d() > kPlainAttentionColumns)
    fail(std::string(op) + ": heads of " + std::to_string(a.d()) + " columns, expected at most " +
         std::to_string(kPlainAttentionColumns));
  return false;
}

}  // namespace

// Views without a TMA tensor map use the older kernels.
bool CudaOps::by_hopper(const AttentionArgs& a) const {
  return hopper_ && tile_map_has(a.qkv.q) && tile_map_has(a.qkv.k) && tile_map_has(a.qkv.v);
}

void CudaOps::launch(const op::AttentionForward& op, cudaStream_t stream) {
  if (op.qkv.q.layout.numel() == 0) return;
  const AttentionArgs args = args_of(op);
  if (!by_flash(op.kSpan.name, args)) plain_attention_forward(args, stream);
  else if (by_hopper(args)) hopper_attention_forward(args, {workspaces_.counters(stream), multiprocessors_}, stream);
  else flash_attention_forward(args, stream);
}

void CudaOps::launch(const op::AttentionBackward& op, cudaStream_t stream) {
  if (op.qkv.q.layout.numel() == 0) return;
  AttentionArgs args = args_of(op);
  args.dout = op.part.rows(op.dout, op.qkv.q.layout);
  args.dqkv = op.dqkv;
  args.delta = reinterpret_cast<float*>(workspaces_.take(stream, op.lse.numel() * int64_t{sizeof(float)}));
  attention_delta(args, stream);
  if (!by_flash(op.kSpan.name, args)) {
    plain_attention_backward(args, stream);
  } else if (by_hopper(args)) {
    const TaskCounters counters{workspaces_.counters(stream), multiprocessors_};
    hopper_attention_backward_keys(args, counters, stream);
    hopper_attention_backward_queries(args, counters, stream);
  } else {
    flash_attention_backward(args, stream);
  }
}

}  // namespace trivet
