// Attention for every type and head size: one warp per query (backward: also one per key), fp32 throughout. Used for
// fp32 (which exists for tests), for head sizes without tensor-core kernels, and for a few new tokens in generation.
#include "kernels/cuda/attention_head.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"

namespace trivet {
namespace {

constexpr int kWarps = 8;                              // per block
constexpr int kColumns = kPlainAttentionColumns / 32;  // columns per lane at most: lane, lane + 32, …

// ---- device helpers

// The dot product of two rows of d elements, computed by one thread.
template <class T>
__device__ float dot(const T* a, const T* b, int d) {
  float sum = 0;
  for (int c = 0; c < d; ++c) sum += to_float(a[c]) * to_float(b[c]);
  return sum;
}

// sum[c] += weight * row[c], for this lane's columns.
template <class T>
__device__ void add_row(float (&sum)[kColumns], float weight, const T* row, int d, int lane) {
#pragma unroll
  for (int k = 0; k < kColumns; ++k)
    if (const int c = lane + 32 * k; c < d) sum[k] += weight * to_float(row[c]);
}

// Called by one thread, which therefore draws four words to use one: see kept_by_dropout.
template <class T>
__device__ float dropout_factor(const HeadArgs<T>& a, int which, int query, int key) {
  const auto square = static_cast<uint64_t>(a.dropout_square(which, query, key));
  const PhiloxWords words = philox4x32<kDropoutRounds>(square, a.dropout.site, a.dropout.seed);
  const uint32_t of_query[2] = {query / 8 % 2 ? words.w[2] : words.w[0], query / 8 % 2 ? words.w[3] : words.w[1]};
  return (key / 8 % 2 ? of_query[1] : of_query[0]) >= a.dropout.threshold ? a.dropout.kept : 0.0f;
}

template <class T>
__device__ void store_row(T* row, const float (&sum)[kColumns], float factor, int d, int lane) {
#pragma unroll
  for (int k = 0; k < kColumns; ++k)
    if (const int c = lane + 32 * k; c < d) row[c] = from_float<T>(sum[k] * factor);
}

// Finds this warp's query or kv head and its position; returns false if the warp has none.
__device__ bool warp_task(int positions, int64_t tasks, int& which, int& position) {
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  which = static_cast<int>(task / positions);
  position = static_cast<int>(task % positions);
  return task < tasks;
}

// A query head, and the keys and values that it attends to.
template <class T>
struct PairedHeads {
  const T *queries, *keys, *values, *douts;

  __device__ PairedHeads(const HeadArgs<T>& a, int which)
      : queries(a.query_head(a.q, which)),
        keys(a.kv_head(a.k, which / a.members)),
        values(a.kv_head(a.v, which / a.members)),
        douts(a.dout + a.out_at(which)) {}
};

// ---- kernels

// Each warp handles one query, and processes the keys that it sees 32 at a time: each lane computes one key's score;
// then all lanes add up the 32 keys' weighted values, each lane for its own columns.
template <class T>
__global__ void __launch_bounds__(32 * kWarps) plain_forward_kernel(HeadArgs<T> a, int64_t tasks) {
  int which, query;
  if (!warp_task(a.s, tasks, which, query)) return;
  const int lane = threadIdx.x % 32;
  const PairedHeads<T> heads(a, which);
  const T* const q = heads.queries + query * a.q.position;
  float max = -INFINITY, total = 0, out[kColumns] = {};
  const int seen = a.seen(query);
  for (int first = a.first_key(which, query); first < seen; first += 32) {
    const int key = first + lane;
    const float score = key < seen ? a.scale * dot(q, heads.keys + key * a.k.position, a.d) : -INFINITY;
    const float new_max = fmaxf(max, warp_reduce(score, Max()));
    const float factor = expf(max - new_max);  // 0 the first time
    float p = expf(score - new_max);
    total = total * factor + warp_reduce(p, Sum());
    max = new_max;
    if (a.dropout.active && key < seen) p *= dropout_factor(a, which, query, key);
#pragma unroll
    for (int k = 0; k < kColumns; ++k) out[k] *= factor;
    const int count = min(32, seen - first);
    for (int other = 0; other < count; ++other)
      add_row(out, __shfl_sync(kAllLanes, p, other), heads.values + (first + other) * a.v.position, a.d, lane);
  }
  store_row(a.out + a.out_at(which) + query * a.out_stride, out, total == 0 ? 0 : 1.0f / total, a.d, lane);
  if (lane == 0) a.lse[a.lse_at(which) + query] = max + logf(total);
}

// Sixteen lanes handle one query of one head, pack by pack; a block handles 16 adjacent heads of one position. (This
// avoids dividing a row index: a 64-bit division would take longer than the memory accesses.)
constexpr int kRowLanes = 16, kRows = 32 * kWarps / kRowLanes;  // kRows: per block
template <class T>
__global__ void __launch_bounds__(32 * kWarps) delta_kernel(HeadArgs<T> a, int heads, bool vectors) {
  const int query = static_cast<int>(blockIdx.x);
  const int which = static_cast<int>(blockIdx.y * kRows + threadIdx.x / kRowLanes);
  const int64_t row = which < heads ? a.out_at(which) + query * a.out_stride : 0;
  const int lane = threadIdx.x % kRowLanes;
  float sum = 0;
  if (which < heads)
    for (int c = kPack * lane; c < a.d; c += kPack * kRowLanes) {
      const Pack dout = load_pack(a.dout + row, c, a.d, vectors);
      const Pack out = load_pack(a.out + row, c, a.d, vectors);
#pragma unroll
      for (int k = 0; k < kPack; ++k) sum += dout.v[k] * out.v[k];
    }
#pragma unroll
  for (int offset = kRowLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  if (which < heads && lane == 0) a.delta[a.lse_at(which) + query] = sum;
}

// A query-key pair's probability and score gradient, both with dropout applied. Computed by one thread.
template <class T>
struct Pair {
  float p_kept, ds;

  __device__ Pair(const HeadArgs<T>& a, const PairedHeads<T>& heads, int which, int query, int key) {
    const T* const q = heads.queries + query * a.q.position;
    const T* const k = heads.keys + key * a.k.position;
    const T* const v = heads.values + key * a.v.position;
    const T* const dout = heads.douts + query * a.out_stride;
    const float keep = a.dropout.active ? dropout_factor(a, which, query, key) : 1.0f;
    const float p = expf(a.scale * dot(q, k, a.d) - a.lse[a.lse_at(which) + query]);
    p_kept = p * keep;
    ds = p * (keep * dot(dout, v, a.d) - a.delta[a.lse_at(which) + query]);
  }
};

// Each warp handles one query: dq = scale * sum over keys of ds * k. A lane computes ds for one of 32 keys at a time.
template <class T>
__global__ void __launch_bounds__(32 * kWarps) plain_backward_queries_kernel(HeadArgs<T> a, int64_t tasks) {
  int which, query;
  if (!warp_task(a.s, tasks, which, query)) return;
  const int lane = threadIdx.x % 32;
  const PairedHeads<T> heads(a, which);
  float dq[kColumns] = {};
  const int seen = a.seen(query);
  for (int first = a.first_key(which, query); first < seen; first += 32) {
    const int key = first + lane;
    const float ds = key < seen ? Pair<T>(a, heads, which, query, key).ds : 0.0f;
    const int count = min(32, seen - first);
    for (int other = 0; other < count; ++other)
      add_row(dq, __shfl_sync(kAllLanes, ds, other), heads.keys + (first + other) * a.k.position, a.d, lane);
  }
  store_row(a.query_head(a.dq, which) + query * a.dq.position, dq, a.scale, a.d, lane);
}

// Each warp handles one key: dk = scale * sum of ds * q and dv = sum of p * dout, over the queries of all query heads
// that attend to it. A lane handles one of 32 queries at a time.
template <class T>
__global__ void __launch_bounds__(32 * kWarps) plain_backward_keys_kernel(HeadArgs<T> a, int64_t tasks) {
  int kv, key;
  if (!warp_task(a.keys, tasks, kv, key)) return;
  const int lane = threadIdx.x % 32;
  float dk[kColumns] = {}, dv[kColumns] = {};
  for (int which = kv * a.members; which < (kv + 1) * a.members; ++which) {
    const PairedHeads<T> heads(a, which);
    for (int first = a.first_query(key); first < a.s && !a.hides(which, first, key); first += 32) {
      const int query = first + lane;
      float p = 0, ds = 0;
      if (query < a.s && !a.hides(which, query, key)) {
        const Pair<T> pair(a, heads, which, query, key);
        p = pair.p_kept;
        ds = pair.ds;
      }
      const int count = min(32, a.s - first);
      for (int other = 0; other < count; ++other) {
        add_row(dk, __shfl_sync(kAllLanes, ds, other), heads.queries + (first + other) * a.q.position, a.d, lane);
        add_row(dv, __shfl_sync(kAllLanes, p, other), heads.douts + (first + other) * a.out_stride, a.d, lane);
      }
    }
  }
  store_row(a.kv_head(a.dk, kv) + key * a.dk.position, dk, a.scale, a.d, lane);
  store_row(a.kv_head(a.dv, kv) + key * a.dv.position, dv, 1.0f, a.d, lane);
}

// ---- launchers

// Calls f.template operator()<T>(tasks, grid), with one warp for each position of each head.
template <class F>
void for_positions(const AttentionArgs& args, int64_t heads, int64_t positions, const F& f) {
  const int64_t tasks = heads * positions;
  const unsigned int grid = blocks(ceil_div(tasks, kWarps), "attention");
  dispatch_device(args.dtype(), [&]<class T>() { f.template operator()<T>(tasks, grid); });
}

}  // namespace

void plain_attention_forward(const AttentionArgs& args, cudaStream_t stream) {
  for_positions(args, args.query_heads(), args.s(), [&]<class T>(int64_t tasks, unsigned int grid) {
    launch_kernel(plain_forward_kernel<T>, {grid, 32 * kWarps, stream}, HeadArgs<T>(args), tasks);
  });
}

void attention_delta(const AttentionArgs& args, cudaStream_t stream) {
  const int64_t heads = args.query_heads();
  const bool vectors = args.d() % kPack == 0 && heads_are_aligned(args.out, args.dout);
  const dim3 grid(blocks(args.s(), "attention_backward"), blocks(ceil_div(heads, kRows), "attention_backward"));
  dispatch_device(args.dtype(), [&]<class T>() {
    launch_kernel(delta_kernel<T>, {grid, 32 * kWarps, stream}, HeadArgs<T>(args), static_cast<int>(heads), vectors);
  });
}

void plain_attention_backward(const AttentionArgs& args, cudaStream_t stream) {
  for_positions(args, args.query_heads(), args.s(), [&]<class T>(int64_t tasks, unsigned int grid) {
    launch_kernel(plain_backward_queries_kernel<T>, {grid, 32 * kWarps, stream}, HeadArgs<T>(args), tasks);
  });
  for_positions(args, args.kv_heads(), args.keys(), [&]<class T>(int64_t tasks, unsigned int grid) {
    launch_kernel(plain_backward_keys_kernel<T>, {grid, 32 * kWarps, stream}, HeadArgs<T>(args), tasks);
  });
}

}  // namespace trivet
