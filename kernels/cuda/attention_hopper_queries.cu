// The backward pass of flash attention on Hopper's tensor cores: the gradient of queries. (attention_hopper_keys.cu
// computes the gradients of keys and values.)
//
// Each block handles 128 queries of one head, 64 per warpgroup, and iterates over the keys that any of them sees, 128
// at a time. Scores have queries as rows. Per tile a warpgroup starts the GEMMs S and dP, turns S into probabilities
// while dP runs, computes the score gradients from both, and accumulates their GEMM with the keys into dQ.
//
// Roofline, estimated by counting: per tile of 128 keys a warpgroup needs 3 GEMMs of 2 * 64 * 128 d operations, which
// take 1536 tensor-core cycles with d = 128, 768 with d = 64. In that time each of its warps issues 420 instructions
// (d = 64: 400), as compiled by nvcc 13.0; 64 of them are exponentials, which occupy the special function units for 512
// cycles. Bound by the tensor cores, which both kernels together occupy for 7/5 as long as one with 5 GEMMs would.
#include "kernels/cuda/attention_hopper.cuh"

namespace trivet {
namespace {

constexpr int kStages = 2;

// A block's constants and its shared memory: tiles, then barriers.
template <int kD>
struct Block {
  static constexpr int kGroups = 2, kThreads = (1 + kGroups) * kWarpgroup, kFetchers = 1, kQueries = 128, kKeys = 128;
  static constexpr int kFetcherRegisters = 24, kRegisters = 240;
  static_assert(registers_suffice(kGroups, kFetcherRegisters, kRegisters));
  // Two stages if they fit: then a warpgroup moves on to the next task while the other one finishes this one.
  static constexpr int kQueryStages = kD == 128 ? 1 : 2;
  using Queries = Tile<kQueries, kD>;
  using Keys = Tile<kKeys, kD>;
  struct Barriers {
    TaskPipeline<kQueryStages> queries;
    Pipeline<kStages> keys;
  };
  static constexpr size_t kQueryTiles = 2 * kQueryStages * Queries::kBytes;
  static constexpr size_t kTiles = kQueryTiles + 2 * kStages * Keys::kBytes, kBytes = kTiles + sizeof(Barriers);
  static_assert(kBytes <= kMostShared);

  unsigned char* const begin = dynamic_shared_tiles();
  Barriers& barriers = *reinterpret_cast<Barriers*>(begin + kTiles);

  __device__ void initialize(uint32_t readers) const {
    barriers.queries.initialize(1, readers);
    barriers.keys.initialize(1, readers);
  }
  __device__ Queries queries(int stage) const { return {begin + 2 * stage * Queries::kBytes}; }
  __device__ Queries douts(int stage) const { return {begin + (2 * stage + 1) * Queries::kBytes}; }
  __device__ Keys keys(int stage) const { return {begin + kQueryTiles + 2 * stage * Keys::kBytes}; }
  __device__ Keys values(int stage) const { return {begin + kQueryTiles + (2 * stage + 1) * Keys::kBytes}; }
};
constexpr int kQueries = Block<64>::kQueries, kKeys = Block<64>::kKeys, kBlocks = kKeys / 8;

// ---- device helpers

// Called by one thread.
template <int kD, bool kDocuments>
__device__ void fetch(const Block<kD>& block, const HeadSchedule& schedule,
                      const HeadArgs<__nv_bfloat16, kDocuments>& a, const HeadTiles& tiles, const TileMaps& maps) {
  using B = Block<kD>;
  auto& b = block.barriers;
  PipelineState<kStages> at;
  PipelineState<B::kQueryStages> queries;
  int task = take_task(schedule);
  for (int which, tile; schedule.task(task, which, tile); task = take_task(schedule), queries.advance()) {
    const int first_query = (schedule.tiles - 1 - tile) * kQueries;
    const int count = a.key_tiles(first_query + kQueries - 1, kKeys);
    const int first = a.first_key_tile(which, first_query, kKeys, count);
    const int key = tiles.key(which / tiles.members), value = tiles.value(which / tiles.members);
    for (int j = first; j < count; ++j, at.advance()) {
      Barrier* const full = b.keys.acquire(at, 2 * B::Keys::kBytes);
      block.keys(at.stage).fetch(maps.k, key, j * kKeys, full);
      block.values(at.stage).fetch(maps.v, value, j * kKeys, full);
      if (j > first) continue;
      // The previous task's queries are in use until its last key tile, so a key stage is freed before the query stage.
      Barrier* const queries_full = b.queries.acquire(queries, 2 * B::Queries::kBytes, task, first);
      block.queries(queries.stage).fetch(maps.q, tiles.query(which), first_query, queries_full);
      block.douts(queries.stage).fetch(maps.dout, a.out_head(which), first_query, queries_full);
    }
  }
  b.queries.acquire(queries, 0, task);
  end_tasks(schedule);
}

// Called by the `group`-th computing warpgroup.
template <bool kDropout, int kD, bool kDocuments>
__device__ void compute(const Block<kD>& block, const HeadSchedule& schedule,
                        const HeadArgs<__nv_bfloat16, kDocuments>& a, int group) {
  constexpr int kSums = Tile<kKeys, kD>::kColumns / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const float to_log2 = a.scale * kLog2E;
  auto& b = block.barriers;

  float p[kBlocks][4], ds[kBlocks][4], dq[kSums][4];
  uint32_t left[kKeys / 16][4];
  PipelineState<kStages> at;
  PipelineState<Block<kD>::kQueryStages> queries;
  for (int which, tile; schedule.task(b.queries.wait_task(queries), which, tile);) {
    const int block_query = (schedule.tiles - 1 - tile) * kQueries, first_query = block_query + 64 * group;
    const int warp_query = first_query + 16 * warp, count = a.key_tiles(block_query + kQueries - 1, kKeys);
    float offset[2], delta[2];  // for this lane's two queries: lse as a base-2 exponent, and D
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = warp_query + lane / 4 + 8 * half;
      offset[half] = query < a.s ? a.lse[a.lse_at(which) + query] * kLog2E : 0.0f;
      delta[half] = query < a.s ? a.delta[a.lse_at(which) + query] : 0.0f;
    }
    clear(dq);

    for (int j = kDocuments ? b.queries.task_bound(queries) : 0; j < count; ++j) {
      const int first_key = j * kKeys;
      b.keys.wait_full(at);
      wgmma_fence();
      start_gemm_nt(p, block.queries(queries.stage), 64 * group, block.keys(at.stage));
      wgmma_commit_group();
      start_gemm_nt(ds, block.douts(queries.stage), 64 * group, block.values(at.stage));
      wgmma_commit_group();
      wgmma_wait_group<1>(p);  // dP may still be running
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) p[n][e] = power_of_2(p[n][e] * to_log2 - offset[e / 2]);
      if (first_key + kKeys > a.seen(first_query) || a.hides(which, first_query + 63, first_key))
        mask_unseen<true>(p, a, which, warp_query, first_key, 0);
      uint64_t kept = 0;
      if constexpr (kDropout) kept = kept_by_dropout<true, kBlocks>(a, which, warp_query, first_key);
      wgmma_wait_group<0>(ds);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if constexpr (kDropout) ds[n][e] *= dropout_scale(a.dropout, kept, 4 * n + e);
          ds[n][e] = p[n][e] * (ds[n][e] - delta[e / 2]);
        }
      to_lefts(left, ds);
      wgmma_fence(dq, left);
      start_gemm_nn(dq, left, block.keys(at.stage));
      wgmma_commit_group();
      if (j == count - 1) b.queries.release(queries);
      wgmma_wait_group<0>(dq, left);
      b.keys.release(at);
    }

    store_rows<kD>(a.query_head(a.dq, which), a.dq.position, dq, {a.scale, a.scale}, first_query, a.s);
  }
}

}  // namespace

// ---- launcher

void hopper_attention_backward_queries(const AttentionArgs& args, const TaskCounters& counters, cudaStream_t stream) {
  dispatch_head(args, [&]<int kD, bool kDocuments>() {
    launch_hopper<Block<kD>, kDocuments>(args, ceil_div(args.s(), kQueries), args.query_heads(),
                                         ceil_div(4 * args.keys() * args.d(), args.members()), counters, stream);
  });
}

}  // namespace trivet
