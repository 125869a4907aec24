// The backward pass of flash attention on Hopper's tensor cores: gradients of keys and values.
// (The formulas are in attention_flash_backward.cu; attention_hopper_queries.cu computes the gradient of the queries.
// The two kernels take 7 GEMMs of s^2 d instead of 5; in return, no block waits for another, nothing is added with
// atomics, and a second run gives the same bits.)
//
// Each block handles 128 keys of one kv head, 64 per warpgroup. For each query head in its group, it iterates over the
// queries, 64 at a time, from the first that sees one of the keys. Scores have keys as rows, so probabilities and score
// gradients are left operands straight from registers. Per tile a warpgroup starts four GEMMs: S (the scores) and dP,
// then dV once it has turned S into probabilities, and dK once it has turned both into score gradients. While the
// warpgroup computes the next GEMM's operand, the tensor cores run dP, then dV, and the other warpgroup's GEMMs.
//
// Roofline, estimated by counting: per tile of 64 queries a warpgroup needs 4 GEMMs of 2 * 64 * 64 d operations, which
// take 1024 tensor-core cycles with d = 128, 512 with d = 64. In that time each of its warps issues 310 instructions
// (d = 64: 290), as compiled by nvcc 13.0; 32 of them are exponentials, which occupy the special function units for 256
// cycles. Bound by the tensor cores, provided that S and dP, with only 64 columns, get the 128 bytes per cycle that
// they read from shared memory, which is its full bandwidth.
#include "kernels/cuda/attention_hopper.cuh"

namespace trivet {
namespace {

// Two stages of keys and values: the next task's tiles arrive while this task's last queries are processed.
constexpr int kStages = 3, kKeyStages = 2;

// A block's constants and its shared memory: tiles, then per-query values (lse as a base-2 exponent) and barriers.
template <int kD>
struct Block {
  static constexpr int kGroups = 2, kThreads = (1 + kGroups) * kWarpgroup, kFetchers = 32, kKeys = 128, kQueries = 64;
  static constexpr int kFetcherRegisters = 40, kRegisters = 232;
  static_assert(registers_suffice(kGroups, kFetcherRegisters, kRegisters));
  using Keys = Tile<kKeys, kD>;
  using Queries = Tile<kQueries, kD>;
  struct Rest {
    float lse[kStages][kQueries], delta[kStages][kQueries];
    TaskPipeline<kKeyStages> keys;
    Pipeline<kStages> queries;
  };
  static constexpr size_t kKeyTiles = 2 * kKeyStages * Keys::kBytes;
  static constexpr size_t kTiles = kKeyTiles + 2 * kStages * Queries::kBytes, kBytes = kTiles + sizeof(Rest);
  static_assert(kBytes <= kMostShared);

  unsigned char* const begin = dynamic_shared_tiles();
  Rest& rest = *reinterpret_cast<Rest*>(begin + kTiles);

  __device__ void initialize(uint32_t readers) const {
    rest.keys.initialize(1, readers);
    rest.queries.initialize(kFetchers + 1, readers);
  }
  __device__ Keys keys(int stage) const { return {begin + 2 * stage * Keys::kBytes}; }
  __device__ Keys values(int stage) const { return {begin + (2 * stage + 1) * Keys::kBytes}; }
  __device__ Queries queries(int stage) const { return {begin + kKeyTiles + 2 * stage * Queries::kBytes}; }
  __device__ Queries douts(int stage) const { return {begin + kKeyTiles + (2 * stage + 1) * Queries::kBytes}; }
};
constexpr int kKeys = Block<64>::kKeys, kQueries = Block<64>::kQueries, kBlocks = kQueries / 8;

// ---- device helpers

// Called by one warp: one of its threads issues TMA copies of tiles; all copy the per-query values.
template <int kD, bool kDocuments>
__device__ void fetch(const Block<kD>& block, const HeadSchedule& schedule,
                      const HeadArgs<__nv_bfloat16, kDocuments>& a, const HeadTiles& heads, const TileMaps& maps) {
  using B = Block<kD>;
  auto& r = block.rest;
  const int lane = threadIdx.x;
  PipelineState<kStages> at;
  int turn = 0;
  const auto take = [&] { return __shfl_sync(0xffffffffu, lane == 0 ? atomicAdd(schedule.counters, 1) : 0, 0); };
  int task = take();
  for (int kv, tile; schedule.task(task, kv, tile); task = take(), ++turn) {
    const auto keys = PipelineState<kKeyStages>::after(turn);
    const int end =
        a.query_tiles(kv * heads.members, (tile + 1) * kKeys - 1, a.first_query(tile * kKeys) / kQueries, kQueries);
    if (lane == 0) {
      Barrier* const full = r.keys.acquire(keys, 2 * B::Keys::kBytes, task, end);
      block.keys(keys.stage).fetch(maps.k, heads.key(kv), tile * kKeys, full);
      block.values(keys.stage).fetch(maps.v, heads.value(kv), tile * kKeys, full);
    }
    // Computed here because division needs registers. A group's heads are adjacent in dout.
    int query_matrix = heads.query(kv * heads.members), dout_matrix = a.out_head(kv * heads.members);
    for (const int last = dout_matrix + heads.members; dout_matrix < last;
         ++dout_matrix, query_matrix += heads.q.member)
#pragma unroll 1  // else hoisted values spill
      for (int i = a.first_query(tile * kKeys) / kQueries; i < end; ++i, at.advance()) {
        float lse[kQueries / 32], delta[kQueries / 32];
#pragma unroll
        for (int k = 0; k < kQueries / 32; ++k) {
          const int query = i * kQueries + 32 * k + lane;
          lse[k] = query < a.s ? a.lse[a.lse_of(dout_matrix) + query] * kLog2E : 0.0f;
          delta[k] = query < a.s ? a.delta[a.lse_of(dout_matrix) + query] : 0.0f;
        }
        r.queries.wait_empty(at);
        if (lane == 0) {  // before lse and delta have arrived
          Barrier* const full = r.queries.expect(at, 2 * B::Queries::kBytes);
          block.queries(at.stage).fetch(maps.q, query_matrix, i * kQueries, full);
          block.douts(at.stage).fetch(maps.dout, dout_matrix, i * kQueries, full);
        }
#pragma unroll
        for (int k = 0; k < kQueries / 32; ++k) {
          r.lse[at.stage][32 * k + lane] = lse[k];
          r.delta[at.stage][32 * k + lane] = delta[k];
        }
        arrive(&r.queries.full[at.stage]);
      }
  }
  if (lane != 0) return;
  r.keys.acquire(PipelineState<kKeyStages>::after(turn), 0, task);
  end_tasks(schedule);
}

// Called by the `group`-th computing warpgroup.
template <bool kDropout, int kD, bool kDocuments>
__device__ void compute(const Block<kD>& block, const HeadSchedule& schedule,
                        const HeadArgs<__nv_bfloat16, kDocuments>& a, int group) {
  constexpr int kSums = Tile<kQueries, kD>::kColumns / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, t = lane % 4;
  const int tiles = (a.s + kQueries - 1) / kQueries;
  const float to_log2 = a.scale * kLog2E;
  auto& r = block.rest;

  float p[kBlocks][4], ds[kBlocks][4], dk[kSums][4], dv[kSums][4];
  uint32_t p_left[kQueries / 16][4], ds_left[kQueries / 16][4];
  // The GEMMs for dV and dK may still run during the next tile, so that its scores' GEMM follows without a gap. With
  // 128 columns there are too few registers for that (even so, with dropout, some 90 bytes per thread spill).
  constexpr bool kRunOn = kD < 128;
  PipelineState<kStages> at, oldest;
  PipelineState<kKeyStages> keys;

  for (int kv, tile; schedule.task(r.keys.wait_task(keys), kv, tile);) {
    const int first_key = tile * kKeys + 64 * group;
    const int end = kDocuments ? r.keys.task_bound(keys) : tiles;
    clear(dk);
    clear(dv);
    for (int member = 0; member < a.members; ++member) {
      int i = a.first_query(tile * kKeys) / kQueries;
      // The first queries of a block see no key of its second warpgroup.
      for (; a.past + (i + 1) * kQueries <= first_key && i < end; ++i) {
        r.queries.wait_full(at);
        at.advance();
        r.queries.release(oldest);
      }
      const int first = i;

      for (; i < end; ++i) {
        const int first_query = i * kQueries;
        uint64_t kept = 0;  // drawn before the scores need registers
        if constexpr (kDropout)
          kept = kept_by_dropout<false, kBlocks>(a, kv * a.members + member, first_key + 16 * warp, first_query);
        r.queries.wait_full(at);
        wgmma_fence();
        start_gemm_nt(p, block.keys(keys.stage), 64 * group, block.queries(at.stage));
        wgmma_commit_group();
        start_gemm_nt(ds, block.values(keys.stage), 64 * group, block.douts(at.stage));
        wgmma_commit_group();
        if constexpr (kRunOn) {
          wgmma_wait_group<1>(p, dk, dv, p_left, ds_left);  // dP may still be running
          if (i > first) r.queries.release(oldest);
        } else {
          wgmma_wait_group<1>(p);
        }
        const float* const lse = r.lse[at.stage];
        const float* const delta = r.delta[at.stage];
        // Queries past the end are zeros, and so are their lse and delta: they add nothing.
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
          const float2 offset = *reinterpret_cast<const float2*>(lse + 8 * n + 2 * t);
#pragma unroll
          for (int e = 0; e < 4; ++e) p[n][e] = power_of_2(p[n][e] * to_log2 - (e % 2 == 0 ? offset.x : offset.y));
        }
        if (first_key + 63 > a.past + first_query || a.hides(kv * a.members, first_query + kQueries - 1, first_key))
          mask_unseen<false>(p, a, kv * a.members, first_key + 16 * warp, first_query, 0);
        if constexpr (kDropout) {
          float p_kept[kBlocks][4];
#pragma unroll
          for (int k = 0; k < 4 * kBlocks; ++k) p_kept[k / 4][k % 4] = p[k / 4][k % 4];
          apply_dropout(p_kept, a.dropout, kept);
          to_lefts(p_left, p_kept);
        } else {
          to_lefts(p_left, p);
        }
        wgmma_fence(dv, p_left);
        start_gemm_nn(dv, p_left, block.douts(at.stage));
        wgmma_commit_group();
        wgmma_wait_group<1>(ds);  // dV may still be running
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
        wgmma_fence(dk, ds_left);
        start_gemm_nn(dk, ds_left, block.queries(at.stage));
        wgmma_commit_group();
        at.advance();
        if constexpr (!kRunOn) {
          wgmma_wait_group<0>(dk, dv, p_left, ds_left);
          r.queries.release(oldest);
        }
      }
      if constexpr (kRunOn) {
        wgmma_wait_group<0>(dk, dv, p_left, ds_left);
        if (first < end) r.queries.release(oldest);
      }
    }
    r.keys.release(keys);

    store_rows<kD>(a.kv_head(a.dk, kv), a.dk.position, dk, {a.scale, a.scale}, first_key, a.keys);
    store_rows<kD>(a.kv_head(a.dv, kv), a.dv.position, dv, {1.0f, 1.0f}, first_key, a.keys);
  }
}

}  // namespace

// ---- launcher

void hopper_attention_backward_keys(const AttentionArgs& args, const TaskCounters& counters, cudaStream_t stream) {
  dispatch_head(args, [&]<int kD, bool kDocuments>() {
    launch_hopper<Block<kD>, kDocuments>(args, ceil_div(args.keys(), kKeys), args.kv_heads(),
                                         4 * args.s() * args.d() * args.members(), counters, stream);
  });
}

}  // namespace trivet
