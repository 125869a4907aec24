// Flash attention on the tensor cores, forward (Dao 2023, "FlashAttention-2"). Each block handles 128 queries of
// one head and iterates over its keys and values in tiles of 64. The next tile is copied to shared memory while the
// current one is processed. Scores stay in registers.
//
// Roofline: 4 s^2 d / 2 operations per head (causal: half of the scores are masked) for 8 s d bytes: bound by the
// tensor cores once s reaches a few hundred.
#include "kernels/cuda/attention_head.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_core.cuh"

namespace trivet {
namespace {

constexpr int kQueries = 128, kKeys = 64;          // per block; per tile
constexpr int kWarps = 4, kThreads = 32 * kWarps;  // each warp handles 32 queries, as two groups of 16
constexpr int kGroups = 2, kKeyBlocks = kKeys / 8;

template <int kD>
constexpr size_t shared_bytes() {  // queries, and two stages of keys and values
  return (kQueries + 4 * kKeys) * (kD + 8) * sizeof(__nv_bfloat16);
}

// ---- kernel

// With g = lane / 4 and t = lane % 4, a lane holds rows 16 m + g and 16 m + g + 8 (m = 0, 1) of its warp's queries, and
// keys or columns 2t and 2t + 1 of each 8.
template <int kD, bool kDocuments>
__global__ void __launch_bounds__(kThreads)
    flash_forward_kernel(HeadArgs<__nv_bfloat16, kDocuments> a, int query_tiles, int heads) {
  constexpr int kLd = kD + 8, kTile = kKeys * kLd;
  auto* const queries = dynamic_shared<__nv_bfloat16>();
  __nv_bfloat16* const stages = queries + kQueries * kLd;  // [2][keys, values][kKeys][kLd]

  // The last queries see the most keys, so they start first.
  const int which = static_cast<int>(blockIdx.x) % heads;
  const int tile = query_tiles - 1 - static_cast<int>(blockIdx.x) / heads;
  const int first_query = tile * kQueries;
  const int key_tiles = a.key_tiles(first_query + kQueries - 1, kKeys);
  const int first_tile = a.first_key_tile(which, first_query, kKeys, key_tiles);
  const __nv_bfloat16* const q = a.query_head(a.q, which);
  const __nv_bfloat16* const k = a.kv_head(a.k, which / a.members);
  const __nv_bfloat16* const v = a.kv_head(a.v, which / a.members);
  const auto fetch = [&](int j) {
    __nv_bfloat16* const to = stages + j % 2 * 2 * kTile;
    copy_tile_async<kKeys, kD, kThreads>(to, k, a.k.position, j * kKeys, a.keys);
    copy_tile_async<kKeys, kD, kThreads>(to + kTile, v, a.v.position, j * kKeys, a.keys);
  };
  copy_tile_async<kQueries, kD, kThreads>(queries, q, a.q.position, first_query, a.s);
  fetch(first_tile);
  cp_async_commit_group();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
  const int warp_query = first_query + 32 * warp;
  const float to_log2 = a.scale * kLog2E;  // from raw scores to base-2 exponents
  Sums out[kGroups][kD / 8] = {};
  OnlineSoftmax<kDocuments> softmax[kGroups];

  for (int j = first_tile; j < key_tiles; ++j) {
    if (j + 1 < key_tiles) fetch(j + 1);
    cp_async_commit_group();  // possibly an empty group, which keeps the count constant
    cp_async_wait_group<1>();
    __syncthreads();
    const __nv_bfloat16* const keys = stages + j % 2 * 2 * kTile;
    const __nv_bfloat16* const values = keys + kTile;
    const int first_key = j * kKeys;

    // Skip tiles that lie entirely after this warp's queries, or before their documents.
    if (first_key < a.seen(warp_query + 31) && !a.hides(which, warp_query, first_key + kKeys - 1)) {
      Sums scores[kGroups][kKeyBlocks];
      gemm_nt<kD>(scores, queries + 32 * warp * kLd, keys);
      // True if some queries see only part of the tile.
      const bool partly = first_key + kKeys > a.seen(warp_query) || a.hides(which, warp_query + 31, first_key);
#pragma unroll
      for (int m = 0; m < kGroups; ++m) {
        const int group_query = warp_query + 16 * m;
        if (partly) mask_unseen<true>(scores[m], a, which, group_query, first_key, -INFINITY);
        softmax[m].to_probabilities(scores[m], to_log2);
        softmax[m].rescale(out[m]);
        if (a.dropout.active)
          apply_dropout(scores[m], a.dropout, kept_by_dropout<true, kKeyBlocks>(a, which, group_query, first_key));
      }

      Left left[kGroups][kKeys / 16];
#pragma unroll
      for (int m = 0; m < kGroups; ++m) to_lefts(left[m], scores[m]);
      gemm_nn(out, left, values);
    }
    __syncthreads();  // all warps have read this stage before the next fetch overwrites it
  }

#pragma unroll
  for (int m = 0; m < kGroups; ++m) {
    const int group_query = warp_query + 16 * m;
    softmax[m].finish(a.lse + a.lse_at(which), group_query + g, a.s, a.scale);
    store_warp_rows(a.out + a.out_at(which), a.out_stride, out[m], softmax[m].factor, group_query, a.s);
  }
}

}  // namespace

// ---- launcher

bool flash_attention_has(DType dtype, int64_t d) {
  return dtype == DType::bf16 && (d == 64 || d == 80 || d == 96 || d == 128);
}

void flash_attention_forward(const AttentionArgs& args, cudaStream_t stream) {
  dispatch_head(args, [&]<int kD, bool kDocuments>() {
    const int64_t tiles = ceil_div(args.s(), kQueries), heads = args.query_heads();
    const auto kernel = flash_forward_kernel<kD, kDocuments>;
    allow_shared(kernel, shared_bytes<kD>());
    launch_kernel(kernel, {blocks(tiles * heads, "attention_forward"), kThreads, stream, shared_bytes<kD>()},
                  HeadArgs<__nv_bfloat16, kDocuments>(args), static_cast<int>(tiles), static_cast<int>(heads));
  });
}

}  // namespace trivet
