// Costs: the seconds that one operation takes on a system (system.h) in isolation. Pure functions of sizes, independent
// of the engine and the layout: a recorded operation can be priced repeatedly, with different constants.
//
// The replay models interactions between operations (waits, contention, links shared by several messages).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "parallel/comm/call.h"
#include "tools/plan/system.h"

namespace trivet {

inline int64_t ns_of(double seconds) { return std::llround(seconds * 1e9); }

// `batch` GEMMs, each [m, k] by [k, n], in one kernel. The compute units process output tiles in waves, and k may be
// split over 2, 4 or 8 units that add their partial sums in memory; priced as the fastest choice, as if autotuned.
// dtype: of the operands. REQUIRES: dtype is fp32, bf16 or an FP8 type; sizes are positive.
struct Gemm {
  int64_t m = 0, n = 0, k = 0, batch = 1;
};
double gemm_seconds(const System& system, DType dtype, const Gemm& gemm);
// Bytes per output element of a GEMM whose operands have this type.
constexpr int64_t product_bytes(DType dtype) { return size_of(is_fp8(dtype) ? DType::bf16 : dtype); }

// Attention in one kernel that does not store scores. flops: those actually computed, about half of 4 s^2 h per sample
// if causal; the backward pass recomputes the scores and takes 2.5 times the FLOPs of the forward pass.
double attention_seconds(const System& system, DType dtype, double flops, bool backward);

// A memory-bound operation: a norm, an activation, an optimizer step. bytes: read and written.
double memory_seconds(const System& system, double bytes);

// The placement of a group's ranks.
struct GroupPlace {
  int ranks = 1;
  int ranks_per_node = 1;   // on the node with the most ranks; at least `ranks` if one node holds all
  int groups_per_node = 1;  // groups that use the node's network cards at the same time
};

// The time of a call on all ranks of the group, with the fastest of NCCL's protocols LL, LL128 and Simple, and for an
// all-reduce the fastest of ring, tree and NVLink SHARP. bytes: of Call::whole(). Returns 0 for a group of one rank,
// and for a split, which no step contains. REQUIRES: `call` is not a transfer.
double collective_seconds(const System& system, CommCall call, int64_t bytes, const GroupPlace& place);

// The ring's bandwidth as a share of NVLink's: the load that its calls put on memory and compute units.
double ring_share(const System& system, const GroupPlace& place);

// Time from a send's start to its receive's end. across: the ranks are on different nodes.
double transfer_seconds(const System& system, int64_t bytes, bool across);

}  // namespace trivet
