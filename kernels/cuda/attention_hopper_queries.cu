// The backward pass of flash attention on Hopper's tensor cores: the gradient of queries. (attention_hopper_keys.cu has
// those of keys and values.)
//
// A block has 128 queries of one head, a warpgroup 64 of them, and walks over the keys up to the last query, 128 at a
// time. Scores lie with queries as rows. Of a tile a warpgroup starts the products S and dP, makes probabilities of S
// while dP is worked out, gradients of scores of both, and adds their product with the keys to dQ.
//
// Roofline, an estimate by counting: a tile of 128 keys takes a warpgroup 3 products of 2 * 64 * 128 d operations, 1536
// cycles of the tensor cores with d = 128, 768 with d = 64. Each of its warps issues 420 instructions (400) beside, as
// nvcc 13.0 compiles the loop, of which 64 are exponentials: 512 cycles of the special function units. Bound by the
// tensor cores. Together the two kernels take them 7/5 of the time of the 5 products that one would need.
#include "kernels/cuda/attention_hopper.cuh"
#include "kernels/cuda/launch.h"

namespace trivet {
namespace {

constexpr int kQueries = 128, kKeys = 128, kStages = 2, kBlocks = kKeys / 8;
constexpr int kGroups = 2, kThreads = (1 + kGroups) * kWarpgroup;
constexpr int kFetcherRegisters = 24, kRegisters = 240;
static_assert(registers_suffice(kGroups, kFetcherRegisters, kRegisters));

// Two stages of queries where there is room: a warpgroup goes on to the next task while the other one is at this one's.
template <int kD>
inline constexpr int kQueryStages = kD == 128 ? 1 : 2;

template <int kD>
struct Barriers {
  Barrier queries_full[kQueryStages<kD>], queries_free[kQueryStages<kD>], keys_full[kStages], keys_free[kStages];
};

template <int kD>
struct Shared {
  using Queries = Tile<kQueries, kD>;
  using Keys = Tile<kKeys, kD>;
  static constexpr size_t kQueryTiles = 2 * kQueryStages<kD> * Queries::kBytes;
  static constexpr size_t kTiles = kQueryTiles + 2 * kStages * Keys::kBytes, kBytes = kTiles + sizeof(Barriers<kD>);
  static_assert(kBytes <= kMostShared);

  unsigned char* const begin = dynamic_shared_tiles();
  Barriers<kD>& barriers = *reinterpret_cast<Barriers<kD>*>(begin + kTiles);

  __device__ Queries queries(int stage) const { return {begin + 2 * stage * Queries::kBytes}; }
  __device__ Queries douts(int stage) const { return {begin + (2 * stage + 1) * Queries::kBytes}; }
  __device__ Keys keys(int stage) const { return {begin + kQueryTiles + 2 * stage * Keys::kBytes}; }
  __device__ Keys values(int stage) const { return {begin + kQueryTiles + (2 * stage + 1) * Keys::kBytes}; }
};

// ---- device helpers

__device__ int key_tiles(int first_query, int s) { return (min(first_query + kQueries, s) + kKeys - 1) / kKeys; }

// By one thread.
template <int kD>
__device__ void fetch(const Shared<kD>& shared, const HeadSchedule& schedule, int s, const HeadTiles& tiles,
                      const TileMap& query_map, const TileMap& dout_map, const TileMap& key_map,
                      const TileMap& value_map) {
  using S = Shared<kD>;
  Barriers<kD>& b = shared.barriers;
  RingPosition<kStages> at;
  RingPosition<kQueryStages<kD>> queries;
  for (int turn = 0, which, tile; schedule.task(turn, which, tile); ++turn, queries.advance()) {
    const int first_query = (schedule.tiles - 1 - tile) * kQueries, count = key_tiles(first_query, s);
    const int key = tiles.key(which / tiles.members), value = tiles.value(which / tiles.members);
    for (int j = 0; j < count; ++j, at.advance()) {
      Barrier* const full = &b.keys_full[at.stage];
      wait_for(&b.keys_free[at.stage], at.parity ^ 1);
      arrive_and_expect(full, 2 * S::Keys::kBytes);
      shared.keys(at.stage).fetch(key_map, key, j * kKeys, full);
      shared.values(at.stage).fetch(value_map, value, j * kKeys, full);
      if (j > 0) continue;
      // The last task's queries are read longer than all keys but its last: a stage of keys is free before.
      Barrier* const queries_full = &b.queries_full[queries.stage];
      wait_for(&b.queries_free[queries.stage], queries.parity ^ 1);
      arrive_and_expect(queries_full, 2 * S::Queries::kBytes);
      shared.queries(queries.stage).fetch(query_map, tiles.query(which), first_query, queries_full);
      shared.douts(queries.stage).fetch(dout_map, which, first_query, queries_full);
    }
  }
}

// By a warpgroup, the `group`-th of those that compute.
template <int kD, bool kDropout>
__device__ void compute(const Shared<kD>& shared, const HeadSchedule& schedule, const HeadArgs<__nv_bfloat16>& a,
                        int group) {
  constexpr int kSums = Tile<kKeys, kD>::kColumns / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const float to_log2 = a.scale * kLog2E;
  Barriers<kD>& b = shared.barriers;

  float p[kBlocks][4], ds[kBlocks][4], dq[kSums][4];
  uint32_t left[kKeys / 16][4];
  RingPosition<kStages> at;
  RingPosition<kQueryStages<kD>> queries;
  for (int turn = 0, which, tile; schedule.task(turn, which, tile); ++turn, queries.advance()) {
    const int block_query = (schedule.tiles - 1 - tile) * kQueries, first_query = block_query + 64 * group;
    const int warp_query = first_query + 16 * warp, count = key_tiles(block_query, a.s);
    float offset[2], delta[2];  // of this lane's two queries: lse as an exponent of 2, and D
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = warp_query + lane / 4 + 8 * half;
      offset[half] = query < a.s ? a.lse[a.lse_at(which) + query] * kLog2E : 0.0f;
      delta[half] = query < a.s ? a.delta[a.lse_at(which) + query] : 0.0f;
    }
    clear(dq);

    wait_for(&b.queries_full[queries.stage], queries.parity);
    for (int j = 0; j < count; ++j) {
      const int first_key = j * kKeys;
      wait_for(&b.keys_full[at.stage], at.parity);
      begin_products();
      start_product_of_rows(p, shared.queries(queries.stage), 64 * group, shared.keys(at.stage));
      close_products();
      start_product_of_rows(ds, shared.douts(queries.stage), 64 * group, shared.values(at.stage));
      close_products();
      wait_for_products<1>(p);  // dP may still run
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) p[n][e] = power_of_2(p[n][e] * to_log2 - offset[e / 2]);
      if (first_key + kKeys - 1 > first_query) mask_future<true>(p, first_query, first_key, 0);
      uint64_t kept = 0;
      if constexpr (kDropout) kept = kept_by_dropout<true, kBlocks>(a, which, warp_query, first_key);
      wait_for_products<0>(ds);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if constexpr (kDropout) ds[n][e] *= dropout_scale(a.dropout, kept, 4 * n + e);
          ds[n][e] = p[n][e] * (ds[n][e] - delta[e / 2]);
        }
      to_lefts(left, ds);
      begin_products(dq, left);
      start_sum_of_columns(dq, left, shared.keys(at.stage));
      close_products();
      if (j == count - 1) warp_arrives(&b.queries_free[queries.stage]);
      wait_for_products<0>(dq, left);
      warp_arrives(&b.keys_free[at.stage]);
      at.advance();
    }

    const float factor[2] = {a.scale, a.scale};
    store_rows<kD>(a.query_head(a.dq, which), a.dq.position, dq, factor, first_query, a.s);
  }
}

// ---- kernel

template <int kD, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    hopper_queries_kernel(HeadArgs<__nv_bfloat16> a, HeadSchedule schedule, HeadTiles tiles,
                          const __grid_constant__ TileMap query_map, const __grid_constant__ TileMap dout_map,
                          const __grid_constant__ TileMap key_map, const __grid_constant__ TileMap value_map) {
  const Shared<kD> shared;
  Barriers<kD>& b = shared.barriers;
  if (threadIdx.x == 0) {
    constexpr uint32_t kReaders = 4 * kGroups;  // warps
    for (int stage = 0; stage < kQueryStages<kD>; ++stage) {
      initialize(&b.queries_full[stage], 1);
      initialize(&b.queries_free[stage], kReaders);
    }
    for (int stage = 0; stage < kStages; ++stage) {
      initialize(&b.keys_full[stage], 1);
      initialize(&b.keys_free[stage], kReaders);
    }
    publish_barriers();
  }
  __syncthreads();
  const int group = warpgroup_index() - 1;
  if (group < 0) {
    give_registers<kFetcherRegisters>();
    if (threadIdx.x == 0) fetch(shared, schedule, a.s, tiles, query_map, dout_map, key_map, value_map);
  } else {
    take_registers<kRegisters>();
    compute<kD, kDropout>(shared, schedule, a, group);
  }
}

// ---- launcher

template <int kD>
void launch(const AttentionArgs& args, int multiprocessors, cudaStream_t stream) {
  using S = Shared<kD>;
  const int64_t tiles = ceil_div(args.s, kQueries), heads = args.query_heads();
  const HeadSchedule schedule(tiles, heads, ceil_div(args.s * args.d * 2 * 2, args.members));
  const auto map = [&](const HeadsView& view, int rows) { return make_tile_map(view, rows, S::Keys::kBlock); };
  const unsigned int grid = blocks(std::min<int64_t>(tiles * heads, multiprocessors), "attention_backward");
  const auto go = [&](auto* kernel) {
    allow_shared(kernel, S::kBytes);
    launch_kernel(kernel, {grid, kThreads, stream, S::kBytes}, HeadArgs<__nv_bfloat16>(args), schedule, HeadTiles(args),
                  map(args.qkv.q, kQueries), map(args.dout, kQueries), map(args.qkv.k, kKeys), map(args.qkv.v, kKeys));
  };
  if (args.dropout.probability > 0) go(hopper_queries_kernel<kD, true>);
  else go(hopper_queries_kernel<kD, false>);
}

}  // namespace

void hopper_attention_backward_queries(const AttentionArgs& args, int multiprocessors, cudaStream_t stream) {
  dispatch_head(args.d, [&]<int kD>() { launch<kD>(args, multiprocessors, stream); });
}

}  // namespace trivet
