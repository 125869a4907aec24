// The backward pass of flash attention. With D = rowsum(dO * O) and P recomputed from the forward pass's log-sum-exps,
//   P = exp(scale S - lse)   dV = P^T dO   dP = dO V^T   dS = P * (dP - D)   dQ = scale dS K   dK = scale dS^T Q
// with dropout's factors applied to P in dV, and to dP.
//
// Two kernels: one iterates over queries for dK and dV, the other over keys for dQ. Both compute S and dP: 7 GEMMs of
// s^2 d instead of 5. In return, no block waits for another, nothing is added with atomics, and a second run gives the
// same bits.
#include "kernels/cuda/attention_head.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_core.cuh"

namespace trivet {
namespace {

constexpr int kRows = 128, kTile = 64;             // rows of a block's own matrices; of the tiles it iterates over
constexpr int kWarps = 8, kThreads = 32 * kWarps;  // a warp handles 16 rows
constexpr int kBlocks = kTile / 8;                 // blocks of 8 columns in a warp's scores

// ---- device helpers

// For a warp's tile whose rows and columns begin at these positions: turns scores and dP into P (with dropout) and dS.
// lse(n, e), as a base-2 exponent, and delta(n, e) belong to the query of element [n][e].
template <bool kRowsAreQueries, class Args, class Lse, class Delta>
__device__ inline void differentiate(Sums (&p)[kBlocks], Sums (&ds)[kBlocks], const Args& a, int which, int first_row,
                                     int first_column, const Lse& lse, const Delta& delta) {
  const float to_log2 = a.scale * kLog2E;
  uint64_t kept = 0;
  if (a.dropout.active) kept = kept_by_dropout<kRowsAreQueries, kBlocks>(a, which, first_row, first_column);
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) p[n][e] = power_of_2(p[n][e] * to_log2 - lse(n, e));
  const bool partly =
      kRowsAreQueries ? first_column + kTile > a.seen(first_row) || a.hides(which, first_row + 15, first_column)
                      : first_row + 15 > a.past + first_column || a.hides(which, first_column + kTile - 1, first_row);
  if (partly) mask_unseen<kRowsAreQueries>(p, a, which, first_row, first_column, 0);
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float keep = a.dropout.active ? dropout_scale(a.dropout, kept, 4 * n + e) : 1.0f;
      ds[n][e] = p[n][e] * (keep * ds[n][e] - delta(n, e));
      p[n][e] *= keep;
    }
}

// ---- kernels

template <int kD>
constexpr size_t shared_bytes() {  // two matrices that the block owns, two stages of the two that it iterates over
  return (2 * kRows + 4 * kTile) * (kD + 8) * sizeof(__nv_bfloat16) + 4 * kTile * sizeof(float);
}

// Each block handles 128 keys of one kv head, 16 per warp. For each query head in its group, it iterates over the
// queries from the first that sees one of the keys. Scores have keys as rows: a lane with g = lane / 4 and
// t = lane % 4 holds keys g and g + 8, and queries 2t and 2t + 1 of each 8.
template <int kD, bool kDocuments>
__global__ void __launch_bounds__(kThreads, 1)
    flash_backward_keys_kernel(HeadArgs<__nv_bfloat16, kDocuments> a, int kv_heads) {
  constexpr int kLd = kD + 8, kTileSize = kTile * kLd;
  auto* const keys = dynamic_shared<__nv_bfloat16>();
  __nv_bfloat16* const values = keys + kRows * kLd;
  __nv_bfloat16* const stages = values + kRows * kLd;                          // [2][queries, douts][kTile][kLd]
  float* const row_stages = reinterpret_cast<float*>(stages + 4 * kTileSize);  // [2][lse, delta][kTile]

  // The first keys are seen by the most queries, so they start first.
  const int kv = static_cast<int>(blockIdx.x) % kv_heads, first_key = static_cast<int>(blockIdx.x) / kv_heads * kRows;
  const int first_tile = a.first_query(first_key) / kTile;
  // Per query head.
  const int tiles = a.query_tiles(kv * a.members, first_key + kRows - 1, first_tile, kTile) - first_tile;
  const auto head_of = [&](int step) { return kv * a.members + step / tiles; };
  const auto query_of = [&](int step) { return (first_tile + step % tiles) * kTile; };
  const auto fetch = [&](int step) {
    const int which = head_of(step), first_query = query_of(step);
    __nv_bfloat16* const to = stages + step % 2 * 2 * kTileSize;
    copy_tile_async<kTile, kD, kThreads>(to, a.query_head(a.q, which), a.q.position, first_query, a.s);
    copy_tile_async<kTile, kD, kThreads>(to + kTileSize, a.dout + a.out_at(which), a.out_stride, first_query, a.s);
    if (threadIdx.x < 2 * kTile) {
      const int query = first_query + static_cast<int>(threadIdx.x) % kTile;
      const float* const from = (threadIdx.x < kTile ? a.lse : a.delta) + a.lse_at(which);
      cp_async_4(row_stages + step % 2 * 2 * kTile + threadIdx.x, from + (query < a.s ? query : 0), query < a.s);
    }
  };
  copy_tile_async<kRows, kD, kThreads>(keys, a.kv_head(a.k, kv), a.k.position, first_key, a.keys);
  copy_tile_async<kRows, kD, kThreads>(values, a.kv_head(a.v, kv), a.v.position, first_key, a.keys);
  fetch(0);
  cp_async_commit_group();

  const int warp = threadIdx.x / 32, t = threadIdx.x % 4;
  const int warp_key = first_key + 16 * warp;
  Sums dk[1][kD / 8] = {}, dv[1][kD / 8] = {};

  for (int step = 0; step < a.members * tiles; ++step) {
    if (step + 1 < a.members * tiles) fetch(step + 1);
    cp_async_commit_group();
    cp_async_wait_group<1>();
    __syncthreads();
    const __nv_bfloat16* const queries = stages + step % 2 * 2 * kTileSize;
    const __nv_bfloat16* const douts = queries + kTileSize;
    const float* const lse = row_stages + step % 2 * 2 * kTile;
    const float* const delta = lse + kTile;
    const int first_query = query_of(step);

    // Skip tiles in which no query sees a key of this warp.
    if (warp_key < a.past + first_query + kTile && !a.hides(kv * a.members, first_query, warp_key + 15)) {
      Sums p[1][kBlocks], ds[1][kBlocks];
      gemm_nt<kD>(p, keys + 16 * warp * kLd, queries);
      gemm_nt<kD>(ds, values + 16 * warp * kLd, douts);
      // Queries past the end are zeros, and so are their lse and delta: they add nothing.
      differentiate<false>(
          p[0], ds[0], a, head_of(step), warp_key, first_query,
          [&](int n, int e) { return lse[8 * n + 2 * t + e % 2] * kLog2E; },
          [&](int n, int e) { return delta[8 * n + 2 * t + e % 2]; });
      Left left[1][kTile / 16];
      to_lefts(left[0], p[0]);
      gemm_nn(dv, left, douts);
      to_lefts(left[0], ds[0]);
      gemm_nn(dk, left, queries);
    }
    __syncthreads();  // all warps have read this stage before the next fetch overwrites it
  }

  store_warp_rows(a.kv_head(a.dk, kv), a.dk.position, dk[0], {a.scale, a.scale}, warp_key, a.keys);
  store_warp_rows(a.kv_head(a.dv, kv), a.dv.position, dv[0], {1.0f, 1.0f}, warp_key, a.keys);
}

// Each block handles 128 queries of one head, 16 per warp, and iterates over the keys that any of them sees. Scores
// have queries as rows.
template <int kD, bool kDocuments>
__global__ void __launch_bounds__(kThreads, 1)
    flash_backward_queries_kernel(HeadArgs<__nv_bfloat16, kDocuments> a, int query_tiles, int heads) {
  constexpr int kLd = kD + 8, kTileSize = kTile * kLd;
  auto* const queries = dynamic_shared<__nv_bfloat16>();
  __nv_bfloat16* const douts = queries + kRows * kLd;
  __nv_bfloat16* const stages = douts + kRows * kLd;  // [2][keys, values][kTile][kLd]

  // The last queries see the most keys, so they start first.
  const int which = static_cast<int>(blockIdx.x) % heads;
  const int first_query = (query_tiles - 1 - static_cast<int>(blockIdx.x) / heads) * kRows;
  const int tiles = a.key_tiles(first_query + kRows - 1, kTile);
  const int first_tile = a.first_key_tile(which, first_query, kTile, tiles);
  const __nv_bfloat16* const k = a.kv_head(a.k, which / a.members);
  const __nv_bfloat16* const v = a.kv_head(a.v, which / a.members);
  const auto fetch = [&](int j) {
    __nv_bfloat16* const to = stages + j % 2 * 2 * kTileSize;
    copy_tile_async<kTile, kD, kThreads>(to, k, a.k.position, j * kTile, a.keys);
    copy_tile_async<kTile, kD, kThreads>(to + kTileSize, v, a.v.position, j * kTile, a.keys);
  };
  copy_tile_async<kRows, kD, kThreads>(queries, a.query_head(a.q, which), a.q.position, first_query, a.s);
  copy_tile_async<kRows, kD, kThreads>(douts, a.dout + a.out_at(which), a.out_stride, first_query, a.s);
  fetch(first_tile);
  cp_async_commit_group();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
  const int warp_query = first_query + 16 * warp;
  float offset[2], delta[2];  // for this lane's two queries: lse as a base-2 exponent, and D
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = warp_query + g + 8 * half;
    offset[half] = query < a.s ? a.lse[a.lse_at(which) + query] * kLog2E : 0.0f;
    delta[half] = query < a.s ? a.delta[a.lse_at(which) + query] : 0.0f;
  }
  Sums dq[1][kD / 8] = {};

  for (int j = first_tile; j < tiles; ++j) {
    if (j + 1 < tiles) fetch(j + 1);
    cp_async_commit_group();
    cp_async_wait_group<1>();
    __syncthreads();
    const __nv_bfloat16* const keys = stages + j % 2 * 2 * kTileSize;
    const __nv_bfloat16* const values = keys + kTileSize;
    const int first_key = j * kTile;

    // Skip tiles that lie entirely after this warp's queries, or before their documents.
    if (first_key < a.seen(warp_query + 15) && !a.hides(which, warp_query, first_key + kTile - 1)) {
      Sums p[1][kBlocks], ds[1][kBlocks];
      gemm_nt<kD>(p, queries + 16 * warp * kLd, keys);
      gemm_nt<kD>(ds, douts + 16 * warp * kLd, values);
      differentiate<true>(
          p[0], ds[0], a, which, warp_query, first_key, [&](int, int e) { return offset[e / 2]; },
          [&](int, int e) { return delta[e / 2]; });
      Left left[1][kTile / 16];
      to_lefts(left[0], ds[0]);
      gemm_nn(dq, left, keys);
    }
    __syncthreads();
  }
  store_warp_rows(a.query_head(a.dq, which), a.dq.position, dq[0], {a.scale, a.scale}, warp_query, a.s);
}

}  // namespace

// ---- launcher

void flash_attention_backward(const AttentionArgs& args, cudaStream_t stream) {
  dispatch_head(args, [&]<int kD, bool kDocuments>() {
    const HeadArgs<__nv_bfloat16, kDocuments> head_args(args);
    const auto go = [&](auto* kernel, int64_t tiles, int64_t heads, auto... sizes) {
      allow_shared(kernel, shared_bytes<kD>());
      launch_kernel(kernel, {blocks(tiles * heads, "attention_backward"), kThreads, stream, shared_bytes<kD>()},
                    head_args, static_cast<int>(sizes)...);
    };
    go(flash_backward_keys_kernel<kD, kDocuments>, ceil_div(args.keys(), kRows), args.kv_heads(), args.kv_heads());
    const int64_t query_tiles = ceil_div(args.s(), kRows);
    go(flash_backward_queries_kernel<kD, kDocuments>, query_tiles, args.query_heads(), query_tiles, args.query_heads());
  });
}

}  // namespace trivet
