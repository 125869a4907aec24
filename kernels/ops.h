// Ops: every numerical operation of Trivet. An op is a plain struct of tensors and numbers (kernels/layer_ops.h,
// kernels/step_ops.h) with its contract above it; CpuOps (kernels/cpu) and CudaOps (kernels/cuda) keep the same
// contracts, and everything above this page is one code path:
//     ops.run(op::Add{.a = x, .b = y, .out = sum}, stream);
//
// Conventions
//   * Every call enqueues on the stream and returns. Ops on one stream run in order.
//   * Tensors are contiguous. "[n, c]" reads a tensor as a matrix: the last dimension is c, all others are n.
//     Activations are [s, b, h], sequence first: row r is position r / b of batch entry r % b.
//   * T is fp32 or bf16, the same for all T of an op. Sums are kept in fp32 at least, whatever T is.
//   * Gradients of weights are fp32 and are added to (+=); gradients of activations are written (=).
//   * Outputs alias inputs only where the contract says so. Only optional tensors may be null.
//   * Every op gives the same bits when it is run again, whatever the number of threads is doing besides; with
//     another number of threads a rank, sums may be cut elsewhere. (But for cuDNN's attention backward: CudaOptions.)
//   * A wrong shape or dtype throws Error that names the op, the argument, what was found and what was expected.
//
// A new op is a struct in layer_ops.h or step_ops.h and its name in TRIVET_OPS; a CpuOps::compute in kernels/cpu and a
// CudaOps::launch in kernels/cuda; a sample for the tests of all ops (tests/support/op_samples.h), and a test of its
// own.
#pragma once

#include <memory>
#include <optional>
#include <variant>

#include "kernels/base/device.h"
#include "kernels/layer_ops.h"
#include "kernels/step_ops.h"

namespace trivet {

// Every op, once. Whatever there is for each of them is made from this list: of(Op), with commas between.
#define TRIVET_OPS(of)                                                                                                 \
  of(Matmul), of(ColumnSum), of(LayernormForward), of(LayernormBackward), of(GeluForward), of(GeluBackward),           \
      of(AttentionForward), of(AttentionBackward), of(EmbeddingForward), of(EmbeddingBackward), of(PositionForward),   \
      of(PositionBackward), of(BiasDropoutAdd), of(DropoutBackward), of(CrossEntropyForward), of(CrossEntropyRescale), \
      of(CrossEntropyLoss), of(CrossEntropyBackward), of(AdamWStep), of(SumOfSquares), of(ClipScale), of(AcceptStep),  \
      of(FindNonFinite), of(Fill), of(Clear), of(Convert), of(Add)

// Any op, as a value: what wraps or records ops keeps these.
#define TRIVET_TYPE(Op) op::Op
using AnyOp = std::variant<TRIVET_OPS(TRIVET_TYPE)>;

// Whatever runs ops, or notes or maps them before it hands them on.
class Ops {
 public:
  virtual ~Ops() = default;
  // Throws Error where the op's check() does, before anything is queued.
  virtual void run(const AnyOp& op, Stream& stream) = 0;
};

// threads: how many threads each op uses, those of its caller included. trivet::CpuOps itself is in kernels/cpu.
std::unique_ptr<Ops> create_cpu_ops(int threads);

// What a plan for attention is made for: sizes, strides and T of its views. Gradients have the strides of what they are
// the gradients of.
struct AttentionShape {
  HeadsLayout q, k, v;
  DType dtype = DType::bf16;
  bool operator==(const AttentionShape&) const = default;
};
// With queries, keys and values in one tensor (qkv_views).
inline AttentionShape packed_attention(int64_t s, int64_t b, int64_t heads, int64_t kv_heads, int64_t d, DType dtype) {
  const QkvViews views = qkv_views(Tensor{nullptr, dtype, {s, b, (heads + 2 * kv_heads) * d}}, heads, kv_heads);
  return {views.q.layout, views.k.layout, views.v.layout, dtype};
}

struct CudaOptions {
  bool tf32 = false;  // fp32 products by the tensor cores, which keep 10 bits of the mantissa of what they multiply
  // How many of cuBLASLt's proposals a product's shape tries out when it first comes; 1 takes the first one untried, so
  // that two runs choose alike.
  int product_candidates = 8;
  // Smaller products, in multiplications and additions, take the first one too: they take a launch's time anyway.
  double trial_operations = 1e9;
  // Attention of this shape, without dropout, is cuDNN's; all other attention is computed by the kernels of this
  // folder.
  std::optional<AttentionShape> cudnn_attention{};
  // Attention on a GPU of compute capability 9.0 (H100, H200) is by kernels of its own, which no other GPU can run.
  bool hopper_attention = true;
  // cuDNN's attention backward adds in a fixed order; that takes 2 b heads s^2 bytes of workspace. Else in any order.
  bool deterministic = true;
};
// On the GPU of `device`, which outlives them. Called by the thread that made the device. In a build without CUDA
// (no_cuda.cc), and where cuDNN is asked for and is not there, or has nothing for the shape: ConfigError.
std::unique_ptr<Ops> create_cuda_ops(Device& device, const CudaOptions& options = {});

}  // namespace trivet
