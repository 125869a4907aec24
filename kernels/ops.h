// Ops: every numerical operation of Trivet. An op is a plain struct of tensors and numbers (kernels/layer_ops.h,
// kernels/step_ops.h) with its contract above it. CpuOps (kernels/cpu) and CudaOps (kernels/cuda) fulfil the same
// contracts, so everything above this layer is one code path:
//     ops.run(op::Add{.a = x, .b = y, .out = sum}, stream);
//
// Conventions
//   * Every call enqueues on the stream and returns. Ops on one stream run in order.
//   * Tensors are contiguous. "[n, c]" reads a tensor as a matrix: the last dimension is c, all others are n.
//     Activations are [s, b, h], sequence first: row r is position r / b of batch entry r % b.
//   * T is fp32 or bf16, the same for all T of an op. Sums use at least fp32, regardless of T.
//   * Gradients of weights are fp32 and are added to (+=); gradients of activations are written (=).
//   * Outputs alias inputs only where the contract says so. Only optional tensors may be null.
//   * Every op is deterministic, and on a CPU its bits do not depend on the number of threads.
//   * A wrong shape or dtype throws an Error that names the op, the argument, and what was found and expected.
//
// A new op needs a struct in layer_ops.h or step_ops.h and its name in TRIVET_OPS; a Kernels::compute in kernels/cpu
// and a CudaOps::launch in kernels/cuda; a sample for the tests of all ops (tests/support/op_samples.h), and a test of
// its own.
#pragma once

#include <memory>
#include <optional>
#include <variant>

#include "kernels/base/device.h"
#include "kernels/cpu_isa.h"
#include "kernels/layer_ops.h"
#include "kernels/step_ops.h"

namespace trivet {

// Every op once, as of(Op), separated by commas. Everything that exists per op is generated from this list.
#define TRIVET_OPS(of)                                                                                                 \
  of(Amax), of(Quantize), of(Matmul), of(ColumnSum), of(LayernormForward), of(LayernormBackward),                      \
      of(ActivationForward), of(ActivationBackward), of(RotaryTable), of(Rope), of(CopyHeads), of(AttentionForward),   \
      of(AttentionBackward), of(AttentionMerge), of(EmbeddingForward), of(EmbeddingBackward), of(PositionForward),     \
      of(PositionBackward), of(BiasDropoutAdd), of(DropoutBackward), of(CrossEntropyForward), of(CrossEntropyRescale), \
      of(CrossEntropyLoss), of(CrossEntropyBackward), of(AdamWStep), of(SumOfSquares), of(ClipScale), of(CountLabels), \
      of(AcceptStep), of(FindNonFinite), of(Fill), of(Clear), of(Convert), of(Add)

// Any op, as a value, for wrappers and recorders.
#define TRIVET_TYPE(Op) op::Op
using AnyOp = std::variant<TRIVET_OPS(TRIVET_TYPE)>;

// Throws Error if the arguments break the op's contract.
template <class Op>
void check_arguments(const Op& op) {
  op.check(Expect{Op::kSpan.name});
}

// Runs ops, or records or maps them and passes them on.
class Ops {
 public:
  virtual ~Ops() = default;
  // Checks the arguments before anything is queued.
  virtual void run(const AnyOp& op, Stream& stream) = 0;
};

// threads: the number that each op uses, including the caller's. isa: of the kernels; empty: the machine's best. Throws
// ConfigError, "CPU kernels for avx512: this machine …", if they cannot run here. narrow_fp8_sums: for all FP8 GEMMs.
std::unique_ptr<Ops> create_cpu_ops(int threads, std::optional<CpuIsa> isa = {}, bool narrow_fp8_sums = false);
// The peak that MFU is measured against on a CPU: TFLOP/s of the fastest of a few large GEMMs in `dtype` on `ops`, and
// of the median run of the same size, which is far lower if other work is running. Takes less than a second.
struct GemmPeak {
  double tflops = 0, median_tflops = 0;
};
GemmPeak measure_gemm_peak(Device& device, Ops& ops, DType dtype);

struct CudaOptions {
  bool tf32 = false;  // fp32 GEMMs on the tensor cores, which round their operands to 10 bits of mantissa
  // GEMM autotuning: how many of cuBLASLt's proposals are timed when a shape first occurs; 1 uses the first one
  // untimed, so that two runs make the same choice.
  int gemm_candidates = 8;
  // GEMMs with fewer multiplications and additions also use the first proposal: they are bound by launch latency.
  double trial_operations = 1e9;
  // GPUs of compute capability 9.0 (H100, H200) use dedicated attention kernels, which no other GPU can run.
  bool hopper_attention = true;
  // FP8 operands have block scales: a GPU or cuBLASLt without them is refused (Lack::block_scales).
  bool block_scales = false;
};
// Ops on the GPU of `device`, which must outlive them. Called by the thread that created the device. Throws ConfigError
// in a build without CUDA (no_cuda.cc).
std::unique_ptr<Ops> create_cuda_ops(Device& device, const CudaOptions& options = {});

}  // namespace trivet
