// Shared by the attention files: the kernels' arguments, and which file contains which kernels.
//
//   attention.cu                 the ops: checks, and the choice among the kernels below
//   attention_flash.cu           bf16 on the tensor cores, heads of 64, 80, 96 or 128 columns
//   attention_flash_backward.cu  the same, backward
//   attention_hopper.cu          forward on GPUs of compute capability 9.0, with Hopper's own instructions
//   attention_hopper_keys.cu     backward on these GPUs: gradients of keys and values
//   attention_hopper_queries.cu  the same, gradient of queries
//   attention_plain.cu           any type, any head size up to 256: simple and slow
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "kernels/base/dtype.h"
#include "kernels/ops.h"

namespace trivet {

struct AttentionArgs {
  QkvViews qkv;
  HeadsView out;  // read by the backward pass
  float* lse;     // indexed by lse_at() of `part`; read by the backward pass
  Dropout dropout;
  bool causal = true;
  AttentionPart part{};
  DocumentStarts documents{};
  HeadsView dout{};  // null in the forward pass, as are dqkv and delta
  QkvViews dqkv{};
  float* delta = nullptr;  // per query, laid out like lse: the sum over columns of dout * out

  DType dtype() const { return qkv.q.memory.dtype; }
  int64_t s() const { return qkv.q.layout.s; }
  int64_t keys() const { return qkv.k.layout.s; }
  // The number of keys before the first query's own. Each later query sees one more.
  int64_t past() const { return causal ? keys() - s() : keys(); }
  int64_t d() const { return qkv.q.layout.d; }
  int64_t members() const { return qkv.q.layout.members; }
  int64_t kv_heads() const { return qkv.q.layout.b * qkv.q.layout.groups; }  // over all batch entries
  int64_t query_heads() const { return kv_heads() * members(); }             // likewise
};

bool flash_attention_has(DType dtype, int64_t d);
void flash_attention_forward(const AttentionArgs& args, cudaStream_t stream);
void flash_attention_backward(const AttentionArgs& args, cudaStream_t stream);

// For a kernel with one persistent block per multiprocessor that processes one task after another.
struct TaskCounters {
  int* data;  // on the device: tasks taken, and blocks finished; both are 0 between a stream's kernels
  int multiprocessors;
};

// The same passes on a GPU of compute capability 9.0. REQUIRES: tile_map_has() for the queries, keys and values.
void hopper_attention_forward(const AttentionArgs& args, const TaskCounters& counters, cudaStream_t stream);
void hopper_attention_backward_keys(const AttentionArgs& args, const TaskCounters& counters, cudaStream_t stream);
void hopper_attention_backward_queries(const AttentionArgs& args, const TaskCounters& counters, cudaStream_t stream);

inline constexpr int64_t kPlainAttentionColumns = 256;
void plain_attention_forward(const AttentionArgs& args, cudaStream_t stream);
void plain_attention_backward(const AttentionArgs& args, cudaStream_t stream);

// delta = rowsum(dout * out): the first step of every backward pass.
void attention_delta(const AttentionArgs& args, cudaStream_t stream);

}  // namespace trivet
