// Causal flash attention on Hopper's tensor cores, forward (Shah et al. 2024, "FlashAttention-3"). A block has 128
// queries of one head (192 with 64 columns), each warpgroup that computes has 64 of them, and walks their keys and
// values in tiles of 128. A warpgroup starts the scores of the next tile, and the sums of this one's values, before it
// makes probabilities of scores; and warpgroups take turns to start products, so that while one makes probabilities the
// tensor cores work for another. It leaves out tiles that only others' queries see. No score leaves the registers.
//
// Roofline, an estimate by counting: a tile of 128 keys takes a warpgroup 4 * 64 * 128 d operations, 1024 cycles of the
// tensor cores with d = 128, 512 with d = 64 (4096 operations a cycle). Each of its warps, one a scheduler, issues 490
// instructions (440) beside, as nvcc 13.0 compiles the loop, of which 66 are exponentials: 528 cycles of the special
// function units. With d = 128 two warpgroups need 2048 cycles of the tensor cores and 1060 of these units: bound by
// the tensor cores. With d = 64 three need 1536 and 1584: by both alike. Heads of 80 columns take the sums of 96.
#include "kernels/cuda/attention_hopper.cuh"
#include "kernels/cuda/launch.h"

namespace trivet {
namespace {

// Two stages of queries: a warpgroup goes on to the next task while others are at this one's last tiles.
constexpr int kKeys = 128, kKeyBlocks = kKeys / 8, kMostStages = 3, kQueryStages = 2;

template <int kD>
struct Shape {
  static constexpr int kGroups = kD == 64 ? 3 : 2, kQueries = 64 * kGroups, kThreads = (1 + kGroups) * kWarpgroup;
  static constexpr int kStages = kD == 128 ? 2 : kMostStages;  // as many as there is room for
  static constexpr int kFetcherRegisters = kGroups == 2 ? 24 : 32, kRegisters = kGroups == 2 ? 240 : 160;
  static_assert(registers_suffice(kGroups, kFetcherRegisters, kRegisters));
  using Queries = Tile<kQueries, kD>;
  using Keys = Tile<kKeys, kD>;
};

// Behind the tiles.
struct Barriers {
  Barrier queries_full[kQueryStages], queries_free[kQueryStages];
  Barrier keys_full[kMostStages], keys_free[kMostStages], values_full[kMostStages], values_free[kMostStages];
  float unread[4 * kWarpgroup];
};

template <int kD>
struct Shared {
  using S = Shape<kD>;
  static constexpr size_t kQueryTiles = kQueryStages * S::Queries::kBytes;
  static constexpr size_t kTiles = kQueryTiles + 2 * S::kStages * S::Keys::kBytes;
  static constexpr size_t kBytes = kTiles + sizeof(Barriers);
  static_assert(kBytes <= kMostShared);

  unsigned char* const begin = dynamic_shared_tiles();
  Barriers& barriers = *reinterpret_cast<Barriers*>(begin + kTiles);

  __device__ typename S::Queries queries(int stage) const { return {begin + stage * S::Queries::kBytes}; }
  __device__ typename S::Keys keys(int stage) const { return {begin + kQueryTiles + 2 * stage * S::Keys::kBytes}; }
  __device__ typename S::Keys values(int stage) const {
    return {begin + kQueryTiles + (2 * stage + 1) * S::Keys::kBytes};
  }
};

// ---- device helpers

__device__ int key_tiles(int first_query, int queries, int s) {
  return (min(first_query + queries, s) + kKeys - 1) / kKeys;
}

// By one thread.
template <int kD>
__device__ void fetch(const Shared<kD>& shared, const HeadSchedule& schedule, int s, const HeadTiles& tiles,
                      const TileMap& query_map, const TileMap& key_map, const TileMap& value_map) {
  using S = Shape<kD>;
  Barriers& b = shared.barriers;
  RingPosition<S::kStages> at;
  RingPosition<kQueryStages> queries;
  for (int turn = 0, which, tile; schedule.task(turn, which, tile); ++turn, queries.advance()) {
    const int first_query = (schedule.tiles - 1 - tile) * S::kQueries;
    const int count = key_tiles(first_query, S::kQueries, s);
    const int key = tiles.key(which / tiles.members), value = tiles.value(which / tiles.members);
    for (int j = 0; j < count; ++j, at.advance()) {
      wait_for(&b.keys_free[at.stage], at.parity ^ 1);
      arrive_and_expect(&b.keys_full[at.stage], S::Keys::kBytes);
      shared.keys(at.stage).fetch(key_map, key, j * kKeys, &b.keys_full[at.stage]);
      if (j == 0) {
        wait_for(&b.queries_free[queries.stage], queries.parity ^ 1);
        arrive_and_expect(&b.queries_full[queries.stage], S::Queries::kBytes);
        shared.queries(queries.stage).fetch(query_map, tiles.query(which), first_query, &b.queries_full[queries.stage]);
      }
      wait_for(&b.values_free[at.stage], at.parity ^ 1);
      arrive_and_expect(&b.values_full[at.stage], S::Keys::kBytes);
      shared.values(at.stage).fetch(value_map, value, j * kKeys, &b.values_full[at.stage]);
    }
  }
}

// Of this lane's two queries.
struct Running {
  float max[2] = {-INFINITY, -INFINITY}, total[2] = {};  // of raw scores; this lane's part of the sum
  float factor[2];                                       // by which what was summed up so far is to be multiplied

  // Scores to probabilities, under the largest score so far. Key 0 is in no query's future, so after the first tile
  // the maximum is a number.
  __device__ void to_probabilities(float (&scores)[kKeyBlocks][4], float to_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = max[half];
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n)
        largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      factor[half] = power_of_2((max[half] - largest) * to_log2);
      max[half] = largest;
      const float offset = largest * to_log2;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[n][e] = power_of_2(scores[n][e] * to_log2 - offset);
          sum += scores[n][e];
        }
      total[half] = total[half] * factor[half] + sum;
    }
  }
};

// By a warpgroup, the `group`-th of those that compute.
template <int kD, bool kDropout>
__device__ void compute(const Shared<kD>& shared, const HeadSchedule& schedule, const HeadArgs<__nv_bfloat16>& a,
                        int group) {
  using S = Shape<kD>;
  constexpr int kBlocks = S::Keys::kColumns / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4;
  const float to_log2 = a.scale * kLog2E;
  Barriers& b = shared.barriers;
  // Who may start products: barrier 1 + group lets the group in. The first one's is open.
  const auto my_turn = [&] { meet(1 + group, 2 * kWarpgroup); };
  const auto next_turn = [&] { arrive_at(1 + (group + 1) % S::kGroups, 2 * kWarpgroup); };
  if (group == S::kGroups - 1) next_turn();

  float scores[kKeyBlocks][4], out[kBlocks][4];
  uint32_t left[kKeys / 16][4];  // probabilities of the tile before
  RingPosition<S::kStages> keys, values;
  RingPosition<kQueryStages> queries;
  for (int turn = 0, which, tile; schedule.task(turn, which, tile); ++turn) {
    const int block_query = (schedule.tiles - 1 - tile) * S::kQueries, first_query = block_query + 64 * group;
    const int count = key_tiles(block_query, S::kQueries, a.s);
    // So many of them are seen by queries of this warpgroup. One whose queries are all behind the end works on one.
    const int seen = first_query < a.s ? key_tiles(first_query, 64, a.s) : 1;
    Running running;
    uint64_t kept = 0;  // of the next tile's probabilities; drawn before its scores need registers
    const auto draw = [&](int j) {
      if constexpr (kDropout) kept = kept_by_dropout<true, kKeyBlocks>(a, which, first_query + 16 * warp, j * kKeys);
    };
    const auto make_probabilities = [&](int j) {
      if ((j + 1) * kKeys - 1 > first_query) mask_future<true>(scores, first_query, j * kKeys, -INFINITY);
      running.to_probabilities(scores, to_log2);
      if constexpr (kDropout) {
#pragma unroll
        for (int i = 0; i < 4 * kKeyBlocks; ++i) scores[i / 4][i % 4] *= dropout_scale(a.dropout, kept, i);
      }
    };
    const auto scores_are_done = [&](int j) {
      warp_arrives(&b.keys_free[keys.stage]);
      keys.advance();
      if (j < seen - 1) return;
      warp_arrives(&b.queries_free[queries.stage]);
      queries.advance();
    };

    draw(0);
    wait_for(&b.queries_full[queries.stage], queries.parity);
    wait_for(&b.keys_full[keys.stage], keys.parity);
    my_turn();
    begin_products();
    start_product_of_rows(scores, shared.queries(queries.stage), 64 * group, shared.keys(keys.stage));
    close_products();
    next_turn();
    wait_for_products<0>(scores);
    scores_are_done(0);
    make_probabilities(0);
    to_lefts(left, scores);
    clear(out);

    for (int j = 1; j < seen; ++j) {
      draw(j);
      wait_for(&b.keys_full[keys.stage], keys.parity);
      my_turn();
      begin_products();
      start_product_of_rows(scores, shared.queries(queries.stage), 64 * group, shared.keys(keys.stage));
      close_products();
      wait_for(&b.values_full[values.stage], values.parity);
      begin_products(out, left);
      start_sum_of_columns(out, left, shared.values(values.stage));
      close_products();
      next_turn();
      wait_for_products<1>(scores);
      scores_are_done(j);
      make_probabilities(j);
      work_before_waiting(running.total[0] + running.total[1], &b.unread[threadIdx.x]);
      wait_for_products<0>(out, left);
      warp_arrives(&b.values_free[values.stage]);
      values.advance();
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[n][e] *= running.factor[e / 2];
      to_lefts(left, scores);
    }

    wait_for(&b.values_full[values.stage], values.parity);
    begin_products(out, left);
    start_sum_of_columns(out, left, shared.values(values.stage));
    close_products();
    const auto pass = [&] {
      my_turn();
      next_turn();
    };
    if (seen < count) pass();  // the others need not wait for this product
    wait_for_products<0>(out, left);
    warp_arrives(&b.values_free[values.stage]);
    values.advance();
    for (int j = seen; j < count; ++j) {  // tiles that only others see: given back unread
      if (j > seen) pass();
      wait_for(&b.keys_full[keys.stage], keys.parity);
      warp_arrives(&b.keys_free[keys.stage]);
      keys.advance();
      wait_for(&b.values_full[values.stage], values.parity);
      warp_arrives(&b.values_free[values.stage]);
      values.advance();
    }

    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = running.total[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      factor[half] = 1.0f / sum;
      const int query = first_query + 16 * warp + g + 8 * half;
      if (lane % 4 == 0 && query < a.s) a.lse[a.lse_at(which) + query] = running.max[half] * a.scale + logf(sum);
    }
    store_rows<kD>(a.out + a.out_at(which), a.out_stride, out, factor, first_query, a.s);
  }
}

// ---- kernel

template <int kD, bool kDropout>
__global__ void __launch_bounds__(Shape<kD>::kThreads, 1)
    hopper_forward_kernel(HeadArgs<__nv_bfloat16> a, HeadSchedule schedule, HeadTiles tiles,
                          const __grid_constant__ TileMap query_map, const __grid_constant__ TileMap key_map,
                          const __grid_constant__ TileMap value_map) {
  using S = Shape<kD>;
  const Shared<kD> shared;
  Barriers& b = shared.barriers;
  if (threadIdx.x == 0) {
    constexpr uint32_t kReaders = 4 * S::kGroups;  // warps
    for (int stage = 0; stage < kQueryStages; ++stage) {
      initialize(&b.queries_full[stage], 1);
      initialize(&b.queries_free[stage], kReaders);
    }
    for (int stage = 0; stage < S::kStages; ++stage) {
      initialize(&b.keys_full[stage], 1);
      initialize(&b.values_full[stage], 1);
      initialize(&b.keys_free[stage], kReaders);
      initialize(&b.values_free[stage], kReaders);
    }
    publish_barriers();
  }
  __syncthreads();
  const int group = warpgroup_index() - 1;
  if (group < 0) {
    give_registers<S::kFetcherRegisters>();
    if (threadIdx.x == 0) fetch(shared, schedule, a.s, tiles, query_map, key_map, value_map);
  } else {
    take_registers<S::kRegisters>();
    compute<kD, kDropout>(shared, schedule, a, group);
  }
}

// ---- launcher

template <int kD>
void launch(const AttentionArgs& args, int multiprocessors, cudaStream_t stream) {
  using S = Shape<kD>;
  const int64_t tiles = ceil_div(args.s, S::kQueries), heads = args.query_heads();
  const HeadSchedule schedule(tiles, heads, ceil_div(args.s * args.d * 2 * 2, args.members));
  const auto map = [&](const HeadsView& view, int rows) { return make_tile_map(view, rows, S::Keys::kBlock); };
  const unsigned int grid = blocks(std::min<int64_t>(tiles * heads, multiprocessors), "attention_forward");
  const auto go = [&](auto* kernel) {
    allow_shared(kernel, Shared<kD>::kBytes);
    launch_kernel(kernel, {grid, S::kThreads, stream, Shared<kD>::kBytes}, HeadArgs<__nv_bfloat16>(args), schedule,
                  HeadTiles(args), map(args.qkv.q, S::kQueries), map(args.qkv.k, kKeys), map(args.qkv.v, kKeys));
  };
  if (args.dropout.probability > 0) go(hopper_forward_kernel<kD, true>);
  else go(hopper_forward_kernel<kD, false>);
}

}  // namespace

void hopper_attention_forward(const AttentionArgs& args, int multiprocessors, cudaStream_t stream) {
  dispatch_head(args.d, [&]<int kD>() { launch<kD>(args, multiprocessors, stream); });
}

}  // namespace trivet
