// The backward pass of flash attention on Hopper's tensor cores: gradients of keys and values.
// (attention_flash_backward.cu has the formulas, attention_hopper_queries.cu the gradient of the queries: 7 products of
// s^2 d in place of 5, for which no block waits for another, nothing is added by atomics, and a second run gives the
// same bits.)
//
// A block has 128 keys of one kv head, a warpgroup 64 of them, and walks over the queries of each query head of its
// group, from the first that sees one of them, 64 at a time. Scores lie with keys as rows: probabilities and the
// gradients of scores are left operands as they stand in registers. Of a tile a warpgroup starts four products: scores
// S and dP, then, with the first ones made probabilities, dV, and with both made gradients of scores, dK: the tensor
// cores work on dP, then on dV, while it makes the operand of the next product, and on the other warpgroup's products
// beside.
//
// Roofline, an estimate by counting: a tile of 64 queries takes a warpgroup 4 products of 2 * 64 * 64 d operations,
// 1024 cycles of the tensor cores with d = 128, 512 with d = 64. Each of its warps issues 310 instructions (290)
// beside, as nvcc 13.0 compiles the loop, of which 32 are exponentials: 256 cycles of the special function units. Bound
// by the tensor cores, as far as S and dP, of only 64 columns, get the 128 bytes of shared memory that they read a
// cycle, which is all there is.
#include "kernels/cuda/attention_hopper.cuh"
#include "kernels/cuda/launch.h"

namespace trivet {
namespace {

// Two stages of keys and values: the next task's arrive while this one's last queries are worked on.
constexpr int kKeys = 128, kQueries = 64, kStages = 3, kKeyStages = 2, kBlocks = kQueries / 8;
constexpr int kGroups = 2, kThreads = (1 + kGroups) * kWarpgroup;
constexpr int kFetcherRegisters = 40, kRegisters = 232;
static_assert(registers_suffice(kGroups, kFetcherRegisters, kRegisters));

// Behind the tiles. lse as an exponent of 2.
struct Rest {
  float lse[kStages][kQueries], delta[kStages][kQueries];
  Barrier keys_full[kKeyStages], keys_free[kKeyStages], queries_full[kStages], queries_free[kStages];
};

template <int kD>
struct Shared {
  using Keys = Tile<kKeys, kD>;
  using Queries = Tile<kQueries, kD>;
  static constexpr size_t kKeyTiles = 2 * kKeyStages * Keys::kBytes;
  static constexpr size_t kTiles = kKeyTiles + 2 * kStages * Queries::kBytes, kBytes = kTiles + sizeof(Rest);
  static_assert(kBytes <= kMostShared);

  unsigned char* const begin = dynamic_shared_tiles();
  Rest& rest = *reinterpret_cast<Rest*>(begin + kTiles);

  __device__ Keys keys(int stage) const { return {begin + 2 * stage * Keys::kBytes}; }
  __device__ Keys values(int stage) const { return {begin + (2 * stage + 1) * Keys::kBytes}; }
  __device__ Queries queries(int stage) const { return {begin + kKeyTiles + 2 * stage * Queries::kBytes}; }
  __device__ Queries douts(int stage) const { return {begin + kKeyTiles + (2 * stage + 1) * Queries::kBytes}; }
};

// ---- device helpers

// By one warp: one of its threads has the TMA copy tiles, all copy the numbers of queries.
template <int kD>
__device__ void fetch(const Shared<kD>& shared, const HeadSchedule& schedule, const HeadArgs<__nv_bfloat16>& a,
                      const HeadTiles& heads, const TileMap& key_map, const TileMap& value_map,
                      const TileMap& query_map, const TileMap& dout_map) {
  using S = Shared<kD>;
  Rest& r = shared.rest;
  const int lane = threadIdx.x, tiles = (a.s + kQueries - 1) / kQueries;
  RingPosition<kStages> at;
  for (int turn = 0, kv, tile; schedule.task(turn, kv, tile); ++turn) {
    const auto keys = RingPosition<kKeyStages>::of_turn(turn);
    if (lane == 0) {
      Barrier* const full = &r.keys_full[keys.stage];
      wait_for(&r.keys_free[keys.stage], keys.parity ^ 1);
      arrive_and_expect(full, 2 * S::Keys::kBytes);
      shared.keys(keys.stage).fetch(key_map, heads.key(kv), tile * kKeys, full);
      shared.values(keys.stage).fetch(value_map, heads.value(kv), tile * kKeys, full);
    }
    int query_matrix = heads.query(kv * heads.members);  // worked out here: a division needs registers
    for (int which = kv * heads.members; which < (kv + 1) * heads.members; ++which, query_matrix += heads.q.member)
      for (int i = tile * kKeys / kQueries; i < tiles; ++i, at.advance()) {
        float lse[kQueries / 32], delta[kQueries / 32];
#pragma unroll
        for (int k = 0; k < kQueries / 32; ++k) {
          const int query = i * kQueries + 32 * k + lane;
          lse[k] = query < a.s ? a.lse[a.lse_at(which) + query] * kLog2E : 0.0f;
          delta[k] = query < a.s ? a.delta[a.lse_at(which) + query] : 0.0f;
        }
        Barrier* const full = &r.queries_full[at.stage];
        wait_for(&r.queries_free[at.stage], at.parity ^ 1);
        if (lane == 0) {  // before lse and delta are here
          arrive_and_expect(full, 2 * S::Queries::kBytes);
          shared.queries(at.stage).fetch(query_map, query_matrix, i * kQueries, full);
          shared.douts(at.stage).fetch(dout_map, which, i * kQueries, full);
        }
#pragma unroll
        for (int k = 0; k < kQueries / 32; ++k) {
          r.lse[at.stage][32 * k + lane] = lse[k];
          r.delta[at.stage][32 * k + lane] = delta[k];
        }
        arrive(full);
      }
  }
}

// By a warpgroup, the `group`-th of those that compute.
template <int kD, bool kDropout>
__device__ void compute(const Shared<kD>& shared, const HeadSchedule& schedule, const HeadArgs<__nv_bfloat16>& a,
                        int group) {
  constexpr int kSums = Tile<kQueries, kD>::kColumns / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, t = lane % 4;
  const int tiles = (a.s + kQueries - 1) / kQueries;
  const float to_log2 = a.scale * kLog2E;
  Rest& r = shared.rest;

  float p[kBlocks][4], ds[kBlocks][4], dk[kSums][4], dv[kSums][4];
  uint32_t p_left[kQueries / 16][4], ds_left[kQueries / 16][4];
  // dV and dK may run on into the next tile, so that its scores follow them without a gap. With 128 columns there are
  // too few registers for that (and with dropout some 90 bytes a thread spill as it is).
  constexpr bool kRunOn = kD < 128;
  RingPosition<kStages> at, oldest;
  RingPosition<kKeyStages> keys;
  const auto give_back = [&] {
    warp_arrives(&r.queries_free[oldest.stage]);
    oldest.advance();
  };

  for (int turn = 0, kv, tile; schedule.task(turn, kv, tile); ++turn) {
    const int first_key = tile * kKeys + 64 * group;
    wait_for(&r.keys_full[keys.stage], keys.parity);
    clear(dk);
    clear(dv);
    for (int member = 0; member < a.members; ++member) {
      int i = tile * kKeys / kQueries;
      // The first queries of a block see no key of its second warpgroup.
      for (; (i + 1) * kQueries <= first_key && i < tiles; ++i) {
        wait_for(&r.queries_full[at.stage], at.parity);
        at.advance();
        give_back();
      }
      const int first = i;

      for (; i < tiles; ++i) {
        const int first_query = i * kQueries;
        uint64_t kept = 0;  // drawn before the scores need registers
        if constexpr (kDropout)
          kept = kept_by_dropout<false, kBlocks>(a, kv * a.members + member, first_key + 16 * warp, first_query);
        wait_for(&r.queries_full[at.stage], at.parity);
        begin_products();
        start_product_of_rows(p, shared.keys(keys.stage), 64 * group, shared.queries(at.stage));
        close_products();
        start_product_of_rows(ds, shared.values(keys.stage), 64 * group, shared.douts(at.stage));
        close_products();
        if constexpr (kRunOn) {
          wait_for_products<1>(p, dk, dv, p_left, ds_left);  // dP may still run
          if (i > first) give_back();
        } else {
          wait_for_products<1>(p);
        }
        const float* const lse = r.lse[at.stage];
        const float* const delta = r.delta[at.stage];
        // Queries behind the end are zeros, and so are their lse and delta: they add nothing.
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
          const float2 offset = *reinterpret_cast<const float2*>(lse + 8 * n + 2 * t);
#pragma unroll
          for (int e = 0; e < 4; ++e) p[n][e] = power_of_2(p[n][e] * to_log2 - (e % 2 == 0 ? offset.x : offset.y));
        }
        if (first_key + 63 > first_query) mask_future<false>(p, first_key, first_query, 0);
        if constexpr (kDropout) {
          float p_kept[kBlocks][4];
#pragma unroll
          for (int k = 0; k < 4 * kBlocks; ++k)
            p_kept[k / 4][k % 4] = p[k / 4][k % 4] * dropout_scale(a.dropout, kept, k);
          to_lefts(p_left, p_kept);
        } else {
          to_lefts(p_left, p);
        }
        begin_products(dv, p_left);
        start_sum_of_columns(dv, p_left, shared.douts(at.stage));
        close_products();
        wait_for_products<1>(ds);  // dV may still run
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
          const float2 mean = *reinterpret_cast<const float2*>(delta + 8 * n + 2 * t);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if constexpr (kDropout) ds[n][e] *= dropout_scale(a.dropout, kept, 4 * n + e);
            ds[n][e] = p[n][e] * (ds[n][e] - (e % 2 == 0 ? mean.x : mean.y));
          }
        }
        to_lefts(ds_left, ds);
        begin_products(dk, ds_left);
        start_sum_of_columns(dk, ds_left, shared.queries(at.stage));
        close_products();
        at.advance();
        if constexpr (!kRunOn) {
          wait_for_products<0>(dk, dv, p_left, ds_left);
          give_back();
        }
      }
      if constexpr (kRunOn) {
        wait_for_products<0>(dk, dv, p_left, ds_left);
        if (first < tiles) give_back();
      }
    }
    warp_arrives(&r.keys_free[keys.stage]);
    keys.advance();

    const float of_dk[2] = {a.scale, a.scale}, of_dv[2] = {1.0f, 1.0f};
    store_rows<kD>(a.kv_head(a.dk, kv), a.dk.position, dk, of_dk, first_key, a.s);
    store_rows<kD>(a.kv_head(a.dv, kv), a.dv.position, dv, of_dv, first_key, a.s);
  }
}

// ---- kernel

template <int kD, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    hopper_keys_kernel(HeadArgs<__nv_bfloat16> a, HeadSchedule schedule, HeadTiles tiles,
                       const __grid_constant__ TileMap key_map, const __grid_constant__ TileMap value_map,
                       const __grid_constant__ TileMap query_map, const __grid_constant__ TileMap dout_map) {
  const Shared<kD> shared;
  Rest& r = shared.rest;
  if (threadIdx.x == 0) {
    constexpr uint32_t kReaders = 4 * kGroups;  // warps
    for (int stage = 0; stage < kKeyStages; ++stage) {
      initialize(&r.keys_full[stage], 1);
      initialize(&r.keys_free[stage], kReaders);
    }
    for (int stage = 0; stage < kStages; ++stage) {
      initialize(&r.queries_full[stage], 32 + 1);
      initialize(&r.queries_free[stage], kReaders);
    }
    publish_barriers();
  }
  __syncthreads();
  const int group = warpgroup_index() - 1;
  if (group < 0) {
    give_registers<kFetcherRegisters>();
    if (threadIdx.x < 32) fetch(shared, schedule, a, tiles, key_map, value_map, query_map, dout_map);
  } else {
    take_registers<kRegisters>();
    compute<kD, kDropout>(shared, schedule, a, group);
  }
}

// ---- launcher

template <int kD>
void launch(const AttentionArgs& args, int multiprocessors, cudaStream_t stream) {
  using S = Shared<kD>;
  const int64_t tiles = ceil_div(args.s, kKeys), heads = args.kv_heads();
  const HeadSchedule schedule(tiles, heads, args.s * args.d * 2 * 2 * args.members);
  const auto map = [&](const HeadsView& view, int rows) { return make_tile_map(view, rows, S::Keys::kBlock); };
  const unsigned int grid = blocks(std::min<int64_t>(tiles * heads, multiprocessors), "attention_backward");
  const auto go = [&](auto* kernel) {
    allow_shared(kernel, S::kBytes);
    launch_kernel(kernel, {grid, kThreads, stream, S::kBytes}, HeadArgs<__nv_bfloat16>(args), schedule, HeadTiles(args),
                  map(args.qkv.k, kKeys), map(args.qkv.v, kKeys), map(args.qkv.q, kQueries), map(args.dout, kQueries));
  };
  if (args.dropout.probability > 0) go(hopper_keys_kernel<kD, true>);
  else go(hopper_keys_kernel<kD, false>);
}

}  // namespace

void hopper_attention_backward_keys(const AttentionArgs& args, int multiprocessors, cudaStream_t stream) {
  dispatch_head(args.d, [&]<int kD>() { launch<kD>(args, multiprocessors, stream); });
}

}  // namespace trivet
