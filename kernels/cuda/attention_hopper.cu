// Flash attention on Hopper's tensor cores, forward (Shah et al. 2024, "FlashAttention-3"). Each block handles 128
// queries of one head (192 with 64 columns), 64 per computing warpgroup, and iterates over their keys and values in
// tiles of 128. A warpgroup starts two GEMMs, one for the next tile's scores and one with this tile's values, and then
// turns the scores into probabilities. Warpgroups take turns starting GEMMs, so the tensor cores work for one while
// another computes probabilities. A warpgroup skips tiles that only the others' queries see. Scores stay in registers.
//
// Roofline, estimated by counting: per tile of 128 keys a warpgroup needs 4 * 64 * 128 d operations, which take 1024
// tensor-core cycles with d = 128, 512 with d = 64 (4096 operations per cycle). In that time each of its warps, one per
// scheduler, issues 490 instructions (d = 64: 440) as compiled by nvcc 13.0; 66 of them are exponentials, which occupy
// the special function units for 528 cycles. With d = 128 two warpgroups need 2048 cycles of the tensor cores, 1060 of
// these units: bound by the former. With d = 64 three need 1536 and 1584: bound by both. 80 columns are padded to 96.
#include "kernels/cuda/attention_hopper.cuh"

namespace trivet {
namespace {

// Two stages of queries: a warpgroup moves on to the next task while others finish the last tiles of this one.
constexpr int kQueryStages = 2;

// A block's constants and its shared memory: tiles, then barriers.
template <int kD>
struct Block {
  static constexpr int kGroups = kD == 64 ? 3 : 2, kThreads = (1 + kGroups) * kWarpgroup, kFetchers = 1;
  static constexpr int kQueries = 64 * kGroups, kKeys = 128;
  static constexpr int kStages = kD == 128 ? 2 : 3;  // the most that fit
  static constexpr int kFetcherRegisters = kGroups == 2 ? 24 : 32, kRegisters = kGroups == 2 ? 240 : 160;
  static_assert(registers_suffice(kGroups, kFetcherRegisters, kRegisters));
  using Queries = Tile<kQueries, kD>;
  using Keys = Tile<kKeys, kD>;
  struct Barriers {
    TaskPipeline<kQueryStages> queries;
    Pipeline<kStages> keys, values;
    float unread[4 * kWarpgroup];
  };
  static constexpr size_t kQueryTiles = kQueryStages * Queries::kBytes;
  static constexpr size_t kTiles = kQueryTiles + 2 * kStages * Keys::kBytes, kBytes = kTiles + sizeof(Barriers);
  static_assert(kBytes <= kMostShared);

  unsigned char* const begin = dynamic_shared_tiles();
  Barriers& barriers = *reinterpret_cast<Barriers*>(begin + kTiles);

  __device__ void initialize(uint32_t readers) const {
    barriers.queries.initialize(1, readers);
    barriers.keys.initialize(1, readers);
    barriers.values.initialize(1, readers);
  }
  __device__ Queries queries(int stage) const { return {begin + stage * Queries::kBytes}; }
  __device__ Keys keys(int stage) const { return {begin + kQueryTiles + 2 * stage * Keys::kBytes}; }
  __device__ Keys values(int stage) const { return {begin + kQueryTiles + (2 * stage + 1) * Keys::kBytes}; }
};
constexpr int kKeys = Block<64>::kKeys, kKeyBlocks = kKeys / 8;

// ---- device helpers

// Called by one thread.
template <int kD, bool kDocuments>
__device__ void fetch(const Block<kD>& block, const HeadSchedule& schedule,
                      const HeadArgs<__nv_bfloat16, kDocuments>& a, const HeadTiles& tiles, const TileMaps& maps) {
  using B = Block<kD>;
  auto& b = block.barriers;
  PipelineState<B::kStages> at;
  PipelineState<kQueryStages> queries;
  int task = take_task(schedule);
  for (int which, tile; schedule.task(task, which, tile); task = take_task(schedule), queries.advance()) {
    const int first_query = (schedule.tiles - 1 - tile) * B::kQueries;
    const int count = a.key_tiles(first_query + B::kQueries - 1, kKeys);
    const int first = a.first_key_tile(which, first_query, kKeys, count);
    const int key = tiles.key(which / tiles.members), value = tiles.value(which / tiles.members);
    for (int j = first; j < count; ++j, at.advance()) {
      block.keys(at.stage).fetch(maps.k, key, j * kKeys, b.keys.acquire(at, B::Keys::kBytes));
      if (j == first)
        block.queries(queries.stage)
            .fetch(maps.q, tiles.query(which), first_query,
                   b.queries.acquire(queries, B::Queries::kBytes, task, first));
      block.values(at.stage).fetch(maps.v, value, j * kKeys, b.values.acquire(at, B::Keys::kBytes));
    }
  }
  b.queries.acquire(queries, 0, task);
  end_tasks(schedule);
}

// Called by the `group`-th computing warpgroup.
template <bool kDropout, int kD, bool kDocuments>
__device__ void compute(const Block<kD>& block, const HeadSchedule& schedule,
                        const HeadArgs<__nv_bfloat16, kDocuments>& a, int group) {
  using B = Block<kD>;
  constexpr int kBlocks = B::Keys::kColumns / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const float to_log2 = a.scale * kLog2E;
  auto& b = block.barriers;
  // Groups take turns starting GEMMs: barrier 1 + group admits the group. The first barrier is open from the start.
  const auto my_turn = [&] { meet(1 + group, 2 * kWarpgroup); };
  const auto next_turn = [&] { arrive_at(1 + (group + 1) % B::kGroups, 2 * kWarpgroup); };
  if (group == B::kGroups - 1) next_turn();

  float scores[kKeyBlocks][4], out[kBlocks][4];
  uint32_t left[kKeys / 16][4];  // the previous tile's probabilities
  PipelineState<B::kStages> keys, values;
  PipelineState<kQueryStages> queries;
  for (int which, tile; schedule.task(b.queries.wait_task(queries), which, tile);) {
    const int block_query = (schedule.tiles - 1 - tile) * B::kQueries, first_query = block_query + 64 * group;
    const int count = a.key_tiles(block_query + B::kQueries - 1, kKeys);
    const int first = kDocuments ? b.queries.task_bound(queries) : 0;
    // The end of the tiles that this warpgroup's queries see. If all queries are past the end, it works on one tile.
    const int seen = first_query < a.s ? max(a.key_tiles(first_query + 63, kKeys), first + 1) : first + 1;
    OnlineSoftmax<kDocuments> softmax;
    uint64_t kept = 0;  // for the next tile's probabilities; drawn before its scores need registers
    const auto draw = [&](int j) {
      if constexpr (kDropout) kept = kept_by_dropout<true, kKeyBlocks>(a, which, first_query + 16 * warp, j * kKeys);
    };
    const auto make_probabilities = [&](int j) {
      if ((j + 1) * kKeys > a.seen(first_query) || a.hides(which, first_query + 63, j * kKeys))
        mask_unseen<true>(scores, a, which, first_query + 16 * warp, j * kKeys, -INFINITY);
      softmax.to_probabilities(scores, to_log2);
      if constexpr (kDropout) apply_dropout(scores, a.dropout, kept);
    };
    const auto scores_are_done = [&](int j) {
      b.keys.release(keys);
      if (j == seen - 1) b.queries.release(queries);
    };

    draw(first);
    b.keys.wait_full(keys);
    my_turn();
    wgmma_fence();
    start_gemm_nt(scores, block.queries(queries.stage), 64 * group, block.keys(keys.stage));
    wgmma_commit_group();
    next_turn();
    wgmma_wait_group<0>(scores);
    scores_are_done(first);
    make_probabilities(first);
    to_lefts(left, scores);
    clear(out);

    for (int j = first + 1; j < seen; ++j) {
      draw(j);
      b.keys.wait_full(keys);
      my_turn();
      wgmma_fence();
      start_gemm_nt(scores, block.queries(queries.stage), 64 * group, block.keys(keys.stage));
      wgmma_commit_group();
      b.values.wait_full(values);
      wgmma_fence(out, left);
      start_gemm_nn(out, left, block.values(values.stage));
      wgmma_commit_group();
      next_turn();
      wgmma_wait_group<1>(scores);
      scores_are_done(j);
      make_probabilities(j);
      work_before_waiting(softmax.total[0] + softmax.total[1], &b.unread[threadIdx.x]);
      wgmma_wait_group<0>(out, left);
      b.values.release(values);
      softmax.rescale(out);
      to_lefts(left, scores);
    }

    b.values.wait_full(values);
    wgmma_fence(out, left);
    start_gemm_nn(out, left, block.values(values.stage));
    wgmma_commit_group();
    const auto pass = [&] {
      my_turn();
      next_turn();
    };
    if (seen < count) pass();  // the others need not wait for this GEMM
    wgmma_wait_group<0>(out, left);
    b.values.release(values);
    for (int j = seen; j < count; ++j) {  // tiles that only other groups see: released unread
      if (j > seen) pass();
      b.keys.wait_full(keys);
      b.keys.release(keys);
      b.values.wait_full(values);
      b.values.release(values);
    }

    softmax.finish(a.lse + a.lse_at(which), first_query + 16 * warp + lane / 4, a.s, a.scale);
    store_rows<kD>(a.out + a.out_at(which), a.out_stride, out, softmax.factor, first_query, a.s);
  }
}

}  // namespace

// ---- launcher

void hopper_attention_forward(const AttentionArgs& args, const TaskCounters& counters, cudaStream_t stream) {
  dispatch_head(args, [&]<int kD, bool kDocuments>() {
    using B = Block<kD>;
    launch_hopper<B, kDocuments>(args, ceil_div(args.s(), B::kQueries), args.query_heads(),
                                 ceil_div(4 * args.keys() * args.d(), args.members()), counters, stream);
  });
}

}  // namespace trivet
