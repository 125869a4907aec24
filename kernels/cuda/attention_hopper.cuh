// Shared by Hopper's attention kernels: task scheduling, tile pipelines, stores, and the kernel template.
//
// A block consists of one warpgroup that fetches and two or three that compute. One thread of the former issues TMA
// copies of tiles into shared-memory stages as they become free; the latter wait for stages, compute, and release them
// (warp specialization). So the two roles never meet at a __syncthreads, and registers go to the warps that compute.
// The grid has one block per multiprocessor. A counter assigns tasks, each one tile of one head. A block fetches the
// next task's first tiles while it finishes the current one. If communication occupies a block's multiprocessor,
// other blocks take over its tasks; a static schedule would not start them until the others had finished.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_head.cuh"
#include "kernels/cuda/cuda_tile_map.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace trivet {

inline constexpr int kWarpgroup = 128;             // threads
inline constexpr size_t kMostShared = 227 * 1024;  // maximum bytes per block

// True if each computing warpgroup can get `each` registers per thread out of those that the launch bounds allot to a
// block. A warpgroup that requested more than the others have released would wait forever.
constexpr bool registers_suffice(int groups, int fetcher, int each) {
  const int at_start = 65536 / ((1 + groups) * kWarpgroup) / 8 * 8;
  return fetcher <= at_start && at_start <= each && fetcher + groups * each <= (1 + groups) * at_start;
}

// A head's tiles are read repeatedly, so heads are processed in sets whose tiles fit in the L2 cache together. The last
// set begins with the tiles that take the most work, the set before it ends with them, and so on, alternating. So the
// work hardly changes from one task to the next, and the last tasks are the shortest.
struct HeadSchedule {
  int tiles, heads, set, sets;
  int* counters;  // TaskCounters

  // `bytes`: how much data each tile of a head reads.
  HeadSchedule(int64_t tiles, int64_t heads, int64_t bytes, int* counters)
      : tiles(static_cast<int>(tiles)),
        heads(static_cast<int>(heads)),
        set(static_cast<int>(std::clamp<int64_t>((int64_t{32} << 20) / bytes, 1, heads))),
        sets((this->heads + set - 1) / set),
        counters(counters) {}

  // Looks up the index-th task. Tile 0 takes the most work. Returns false if there is no such task.
  __host__ __device__ bool task(int index, int& which, int& tile) const {
    if (index >= tiles * heads) return false;
    const int number = index / (set * tiles), first = number * set, rest = index - first * tiles;
    const int here = set < heads - first ? set : heads - first;  // heads in this set
    which = first + rest % here;
    tile = (sets - number) % 2 == 1 ? rest / here : tiles - 1 - rest / here;
    return true;
  }
};

// The index of each head's matrix in its tile map; `which` and `kv` number the heads as in HeadArgs.
struct HeadTiles {
  TileSteps q, k, v;
  int groups, members;

  explicit HeadTiles(const AttentionArgs& a)
      : q(a.qkv.q.layout),
        k(a.qkv.k.layout),
        v(a.qkv.v.layout),
        groups(static_cast<int>(a.qkv.q.layout.groups)),
        members(static_cast<int>(a.members())) {}
  __device__ int query(int which) const { return at(q, which / members) + which % members * q.member; }
  __device__ int key(int kv) const { return at(k, kv); }
  __device__ int value(int kv) const { return at(v, kv); }

 private:
  __device__ int at(const TileSteps& steps, int kv) const {
    return kv / groups * steps.entry + kv % groups * steps.group;
  }
};

// A consumer's or the producer's position in the stages of a pipeline, and the parity of the phase it waits for.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;
  // The state after `turn` advances. Computed only where it is needed, it occupies no registers in between.
  __device__ static PipelineState after(int turn) {
    return {turn % kStages, static_cast<uint32_t>(turn / kStages % 2)};
  }
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The barriers of a ring of stages in shared memory, which the TMA fills and warps read.
template <int kStages>
struct Pipeline {
  using State = PipelineState<kStages>;
  Barrier full[kStages], empty[kStages];

  // Called by one thread. producers: arrivals that fill a stage, besides its bytes. consumers: warps that release it.
  __device__ void initialize(uint32_t producers, uint32_t consumers) {
    for (int stage = 0; stage < kStages; ++stage) {
      trivet::initialize(&full[stage], producers);
      trivet::initialize(&empty[stage], consumers);
    }
  }
  // The producer waits for the opposite parity, whose phase counts as complete from the start.
  __device__ void wait_empty(const State& at) { wait_for(&empty[at.stage], at.parity ^ 1); }
  __device__ void wait_full(const State& at) { wait_for(&full[at.stage], at.parity); }
  // Called by one thread: announces a stage's bytes, and returns the barrier on which the copies complete.
  __device__ Barrier* expect(const State& at, uint32_t bytes) {
    arrive_and_expect(&full[at.stage], bytes);
    return &full[at.stage];
  }
  __device__ Barrier* acquire(const State& at, uint32_t bytes) {
    wait_empty(at);
    return expect(at, bytes);
  }
  // Called by a whole warp once it has read the stage.
  __device__ void release(State& at) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&empty[at.stage]);
    at.advance();
  }
};

// Takes the next task for a block and returns its index. Called by one thread, until there are no more tasks.
__device__ inline int take_task(const HeadSchedule& schedule) {
  // The shuffle tells the compiler that all active lanes (there is only one) have the same index.
  return __shfl_sync(1u, atomicAdd(schedule.counters, 1), 0);
}
// Called once per block when no tasks are left: the last block to finish resets the counters to 0.
__device__ inline void end_tasks(const HeadSchedule& schedule) {
  const int blocks = static_cast<int>(gridDim.x);
  if (atomicAdd(schedule.counters + 1, 1) != blocks - 1) return;
  atomicAdd(schedule.counters, -schedule.tiles * schedule.heads - blocks);  // one failed request per block
  atomicAdd(schedule.counters + 1, -blocks);
}

// A pipeline for tiles that are fetched once per task. It also passes the computing warps the task's index (the last
// index comes without tiles) and, with documents, a bound on the tiles to iterate over, looked up once for all warps.
template <int kStages>
struct TaskPipeline : Pipeline<kStages> {
  using State = PipelineState<kStages>;
  int index[kStages], bound[kStages];

  __device__ Barrier* acquire(const State& at, uint32_t bytes, int task, int task_bound = 0) {
    this->wait_empty(at);
    index[at.stage] = task;
    bound[at.stage] = task_bound;
    return this->expect(at, bytes);
  }
  // Called by a whole warp. (The shuffle tells the compiler that the index is the same in all lanes.)
  __device__ int wait_task(const State& at) {
    this->wait_full(at);
    return __shfl_sync(0xffffffffu, index[at.stage], 0);
  }
  __device__ int task_bound(const State& at) const { return __shfl_sync(0xffffffffu, bound[at.stage], 0); }
};

// Stores a warpgroup's 64 rows of sums, from row `first` on, to rows of kD columns that are `stride` elements apart,
// with one factor for each of this lane's two rows; rows from s on are skipped. Four lanes share the eight columns of a
// row in each block. They exchange elements until each has all eight columns of every fourth block and stores 16 bytes.
template <int kD, int kBlocks>
__device__ inline void store_rows(__nv_bfloat16* to, int64_t stride, const float (&sums)[kBlocks][4],
                                  const float (&factor)[2], int first, int s) {
  static_assert(kBlocks % 4 == 0);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
  const bool odd = t & 1, high = t & 2;
  // Exchanges the b of the first lane of a pair with the a of the second.
  const auto trade = [](uint32_t& a, uint32_t& b, bool second, int flip) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, second ? a : b, flip);
    (second ? a : b) = got;
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + 16 * warp + g + 8 * half;
    __nv_bfloat16* const at = to + row * stride + 8 * t;
#pragma unroll
    for (int n = 0; n < kBlocks; n += 4) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        word[i] = pair_of(sums[n + i][2 * half] * factor[half], sums[n + i][2 * half + 1] * factor[half]);
      trade(word[0], word[1], odd, 1);
      trade(word[2], word[3], odd, 1);
      trade(word[0], word[2], high, 2);
      trade(word[1], word[3], high, 2);
      if (row < s && 8 * (n + t) < kD)
        *reinterpret_cast<uint4*>(at + 8 * n) = make_uint4(word[0], word[1], word[2], word[3]);
    }
  }
}

// ---- the kernel template

// The tensor maps of a kernel; dout is a null map in the forward pass.
struct TileMaps {
  TileMap q, k, v, dout;
};

// Block defines the numbers of threads, registers and bytes, the rows per tile, and initialize(), which one thread
// calls to set up the barriers. Each kernel's file also defines fetch(), called by the first kFetchers threads, and
// compute(), called by each warpgroup from the second on.
template <class Block, bool kDropout, bool kDocuments>
__global__ void __launch_bounds__(Block::kThreads, 1)
    hopper_kernel(HeadArgs<__nv_bfloat16, kDocuments> a, HeadSchedule schedule, HeadTiles tiles,
                  const __grid_constant__ TileMaps maps) {
  const Block block;
  if (threadIdx.x == 0) {
    block.initialize(4 * Block::kGroups);  // the warps that read
    publish_barriers();
  }
  __syncthreads();
  // The shuffle tells the compiler that all lanes of a warp agree, so it keeps descriptors in uniform registers.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  if (group < 0) {
    setmaxnreg_dec<Block::kFetcherRegisters>();
    if (threadIdx.x < Block::kFetchers) fetch(block, schedule, a, tiles, maps);
  } else {
    setmaxnreg_inc<Block::kRegisters>();
    compute<kDropout>(block, schedule, a, group);
  }
}

// Queues the kernel for `heads` heads of `tiles` tiles each; all tiles of a head read the same `bytes` bytes.
template <class Block, bool kDocuments>
void launch_hopper(const AttentionArgs& args, int64_t tiles, int64_t heads, int64_t bytes, const TaskCounters& counters,
                   cudaStream_t stream) {
  const auto kernel =
      args.dropout.probability > 0 ? hopper_kernel<Block, true, kDocuments> : hopper_kernel<Block, false, kDocuments>;
  const auto map = [](const HeadsView& view, int rows) {
    return view.memory ? make_tile_map(view, rows, Block::Keys::kBlock) : TileMap{};
  };
  const TileMaps maps{.q = map(args.qkv.q, Block::kQueries),
                      .k = map(args.qkv.k, Block::kKeys),
                      .v = map(args.qkv.v, Block::kKeys),
                      .dout = map(args.dout, Block::kQueries)};
  const unsigned int grid = blocks(std::min<int64_t>(tiles * heads, counters.multiprocessors), "attention");
  allow_shared(kernel, Block::kBytes);
  launch_kernel(kernel, {grid, Block::kThreads, stream, Block::kBytes}, HeadArgs<__nv_bfloat16, kDocuments>(args),
                HeadSchedule(tiles, heads, bytes, counters.data), HeadTiles(args), maps);
}

}  // namespace trivet
