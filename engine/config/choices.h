// Choices: the enums of a configuration, and what a file calls their values. Those on which a lower floor acts are
// declared there.
#pragma once

#include "base/words.h"
#include "engine/metrics/accounting.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "parallel/data/flat_buffer.h"
#include "parallel/mesh.h"
#include "parallel/tensor/overlap.h"

namespace trivet {

enum class AttentionBackend { flash, cudnn };
enum class RecomputeGranularity { none, selective, full };
enum class RecomputeModule { core_attn, layernorm, mlp };
enum class RecomputeMethod { none, uniform, block };
enum class LrDecay { cosine, linear, constant };
enum class CommBackend { thread, mpi, nccl, staged };
enum class StepAction { take, warn, skip, stop };  // what becomes of a step, when its numbers are known
enum class CudaGraphs { none, local };

// What a file calls the values.
constexpr auto words_of(AttentionBackend) { return word_list("flash", "cudnn"); }
constexpr auto words_of(RecomputeGranularity) { return word_list("none", "selective", "full"); }
constexpr auto words_of(RecomputeModule) { return word_list("core_attn", "layernorm", "mlp"); }
constexpr auto words_of(RecomputeMethod) { return word_list("none", "uniform", "block"); }
constexpr auto words_of(LrDecay) { return word_list("cosine", "linear", "constant"); }
constexpr auto words_of(CommBackend) { return word_list("thread", "mpi", "nccl", "staged"); }
constexpr auto words_of(StepAction) { return word_list("take", "warn", "skip", "stop"); }
constexpr auto words_of(FlopsConvention) { return word_list("causal", "full", "6n"); }
constexpr auto words_of(CudaGraphs) { return word_list("none", "local"); }
constexpr auto words_of(DType) { return word_list("fp32", "bf16"); }
constexpr auto words_of(DeviceKind) { return word_list("cpu", "cuda"); }
constexpr auto words_of(Sharding) { return word_list("no_shard", "optim", "optim_grads", "optim_grads_params"); }
constexpr auto words_of(TensorOverlap) { return word_list("none", "bulk", "ring", "pipeline"); }

}  // namespace trivet
