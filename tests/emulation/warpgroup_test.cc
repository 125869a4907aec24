// Hopper's instructions on the emulated GPU: correct programs compute the expected results, from tiles laid out by hand
// as in the PTX ISA's figures and from tiles that the TMA copied; and incorrect ones are detected. Also the assignment
// of attention tiles to blocks.
#include "kernels/cuda/warpgroup.cuh"

#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/cuda/attention_hopper.cuh"
#include "kernels/cuda/cuda_tile_map.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_core.cuh"
#include "tests/emulation/runtime.h"

namespace trivet {
namespace {

enum class Slip {
  none,
  no_proxy_fence,
  no_product_fence,
  sums_touched,
  wait_too_weak,
  tile_overwritten,
  operand_register_changed,
  read_before_arrival,
  barrier_not_published,
  nobody_arrives
};

constexpr int kLeft = 64, kRight = 128;

// scores[64, 128] = left right^T, and sums[64, d] = scores right, by one warpgroup. Tiles are copied by the TMA, or
// stored by the kernel.
template <int kD>
__global__ void products_kernel(const __nv_bfloat16* left, const __nv_bfloat16* right, TileMap left_map,
                                TileMap right_map, bool by_tma, Slip slip, float* scores_to, float* sums_to) {
  using Left = Tile<kLeft, kD>;
  using Right = Tile<kRight, kD>;
  unsigned char* const begin = dynamic_shared_tiles();
  const Left a{begin};
  const Right b{begin + Left::kBytes};
  auto* const barrier = reinterpret_cast<Barrier*>(begin + Left::kBytes + Right::kBytes);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    initialize(barrier, slip == Slip::nobody_arrives ? 2 : 1);
    if (slip != Slip::barrier_not_published) publish_barriers();
  }
  __syncthreads();
  if (by_tma) {
    if (thread == 0) {
      arrive_and_expect(barrier, Left::kBytes + Right::kBytes);
      a.fetch(left_map, 1, 3, barrier);
      b.fetch(right_map, 1, 3, barrier);
    }
    if (slip != Slip::read_before_arrival) wait_for(barrier, 0);
  } else {
    // Drawn in the PTX ISA as rows of 128 (64) bytes, whose 16-byte pieces are permuted.
    const auto store = [&](unsigned char* tile, const __nv_bfloat16* from, int tile_rows) {
      for (int i = thread; i < tile_rows * Left::kColumns; i += kLeft * 2) {
        const int row = i / Left::kColumns, column = i % Left::kColumns, across = Left::kBlock;
        const int piece = column % across / 8, place = across == 64 ? piece ^ row % 8 : piece ^ row / 2 % 4;
        const int at = (column / across * tile_rows + row) * across + 8 * place + column % 8;
        reinterpret_cast<__nv_bfloat16*>(tile)[at] = column < kD ? from[row * kD + column] : __nv_bfloat16(0.0f);
      }
    };
    store(a.data, left, kLeft);
    store(b.data, right, kRight);
    if (slip != Slip::no_proxy_fence) emulation::fence_async_proxy();
    __syncthreads();
  }

  float scores[kRight / 8][4], sums[Right::kColumns / 8][4] = {};
  if (slip != Slip::no_product_fence) wgmma_fence();
  start_gemm_nt(scores, a, 0, b);
  wgmma_commit_group();
  if (slip == Slip::sums_touched) scores[0][0] = 1;
  if (slip == Slip::tile_overwritten) b.data[thread] ^= 1, emulation::fence_async_proxy();
  if (slip == Slip::wait_too_weak) wgmma_wait_group<1>(scores);
  wgmma_wait_group<0>(scores);
  uint32_t operand[kRight / 16][4];
  for (int step = 0; step < kRight / 16; ++step) to_left(operand[step], scores[2 * step], scores[2 * step + 1]);
  wgmma_fence(sums, operand);
  start_gemm_nn(sums, operand, b);
  wgmma_commit_group();
  if (slip == Slip::operand_register_changed) operand[3][1] ^= 1;
  wgmma_wait_group<0>(sums, operand);

  const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  for (int e = 0; e < 4; ++e) {
    const int row = 16 * warp + g + e / 2 * 8, column = 2 * t + e % 2;
    for (int n = 0; n < kRight / 8; ++n) scores_to[row * kRight + 8 * n + column] = scores[n][e];
    for (int n = 0; n < Right::kColumns / 8; ++n)
      if (8 * n < kD) sums_to[row * kD + 8 * n + column] = sums[n][e];
  }
}

struct WarpgroupEmulation : testing::Test {
  WarpgroupEmulation() {
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~WarpgroupEmulation() override {
    for (void* block : blocks) cudaFree(block);
    cudaStreamDestroy(stream);
  }
  template <class T>
  T* on_device(const std::vector<T>& from) {
    T* data = nullptr;
    check_cuda(cudaMalloc(reinterpret_cast<void**>(&data), from.size() * sizeof(T)), "cudaMalloc");
    blocks.push_back(data);
    check_cuda(cudaMemcpyAsync(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice, stream), "copy");
    return data;
  }
  std::vector<float> on_host(const float* data, size_t count) {
    std::vector<float> to(count);
    check_cuda(cudaMemcpyAsync(to.data(), data, count * sizeof(float), cudaMemcpyDeviceToHost, stream), "copy");
    return to;
  }

  // Runs the kernel on matrices of -1, 0 and 1: all sums are integers that bf16 and fp32 represent. The TMA copies from
  // row 3 of the second of three matrices, each with `rows` rows.
  template <int kD>
  void run(bool by_tma, int rows, Slip slip, bool expect_numbers = true) {
    std::mt19937 random(3);
    const auto draw = [&](int64_t count) {
      std::vector<__nv_bfloat16> x(static_cast<size_t>(count));
      for (auto& v : x) v = __nv_bfloat16(static_cast<float>(static_cast<int>(random() % 3) - 1));
      return x;
    };
    const auto left = draw(kLeft * kD), right = draw(kRight * kD), stacked = draw(int64_t{rows} * 3 * kD);
    const auto at = [&](const std::vector<__nv_bfloat16>& of, int row, int column) -> double {
      if (!by_tma) return static_cast<float>(of[static_cast<size_t>(row * kD + column)]);
      return row + 3 < rows ? static_cast<float>(stacked[static_cast<size_t>(((row + 3) * 3 + 1) * kD + column)]) : 0;
    };
    const HeadsView map_view =
        heads_view({const_cast<__nv_bfloat16*>(on_device(stacked)), DType::bf16, {rows, 1, 3 * kD}}, 3, 3);
    float* const scores = on_device(std::vector<float>(kLeft * kRight));
    float* const sums = on_device(std::vector<float>(kLeft * kD));
    constexpr size_t kBytes = Tile<kLeft, kD>::kBytes + Tile<kRight, kD>::kBytes + sizeof(Barrier);
    allow_shared(products_kernel<kD>, kBytes);
    launch_kernel(products_kernel<kD>, {1, 2 * kLeft, stream, kBytes}, on_device(left), on_device(right),
                  make_tile_map(map_view, kLeft, Tile<kLeft, kD>::kBlock),
                  make_tile_map(map_view, kRight, Tile<kRight, kD>::kBlock), by_tma, slip, scores, sums);
    const std::vector<float> found_scores = on_host(scores, kLeft * kRight), found = on_host(sums, kLeft * kD);
    if (!expect_numbers) {
      EXPECT_TRUE(std::isnan(found_scores[0]));
      return;
    }
    for (int i = 0; i < kLeft; ++i) {
      std::vector<double> score(kRight, 0.0);
      for (int j = 0; j < kRight; ++j) {
        for (int c = 0; c < kD; ++c) score[j] += at(left, i, c) * at(right, j, c);
        ASSERT_EQ(found_scores[static_cast<size_t>(i * kRight + j)], score[j]) << kD << ": " << i << ", " << j;
      }
      for (int c = 0; c < kD; ++c) {
        double sum = 0;
        for (int j = 0; j < kRight; ++j) sum += score[j] * at(right, j, c);
        ASSERT_EQ(found[static_cast<size_t>(i * kD + c)], sum) << kD << ": " << i << ", " << c;
      }
    }
  }

  cudaStream_t stream = nullptr;
  std::vector<void*> blocks;
};
using WarpgroupEmulationDeathTest = WarpgroupEmulation;

TEST_F(WarpgroupEmulation, ProductsReadTilesAsTheyAreDrawn) {
  run<64>(false, 200, Slip::none);
  run<80>(false, 200, Slip::none);
  run<96>(false, 200, Slip::none);
  run<128>(false, 200, Slip::none);
}

TEST_F(WarpgroupEmulation, CopiesLayTilesOutForProductsAndFillWithZeros) {
  run<64>(true, 200, Slip::none);
  run<80>(true, 40, Slip::none);  // fewer rows and fewer columns than a tile
  run<128>(true, 100, Slip::none);
}

TEST_F(WarpgroupEmulation, WhatNoFenceMadeVisibleIsNotSeen) { run<64>(false, 200, Slip::no_proxy_fence, false); }

TEST_F(WarpgroupEmulationDeathTest, WrongProgramsEndTheProcess) {
  const auto run_64 = [&](bool by_tma, Slip slip) { run<64>(by_tma, 200, slip); };
  EXPECT_DEATH(run_64(false, Slip::no_product_fence), "no wgmma.fence");
  EXPECT_DEATH(run_64(false, Slip::sums_touched), "sums are written before");
  EXPECT_DEATH(run_64(false, Slip::wait_too_weak), "does not cover");
  EXPECT_DEATH(run_64(false, Slip::tile_overwritten), "operand in shared memory changes");
  EXPECT_DEATH(run_64(false, Slip::operand_register_changed), "registers of an operand change");
  EXPECT_DEATH(run_64(true, Slip::read_before_arrival), "no wait for its barrier");
  EXPECT_DEATH(run_64(true, Slip::barrier_not_published), "no fence.mbarrier_init");
  EXPECT_DEATH(run_64(true, Slip::nobody_arrives), "wait, for ever: .* mbarrier.try_wait");
}

// CUDA does not guarantee the alignment that swizzled tiles need.
TEST_F(WarpgroupEmulationDeathTest, TilesThatAreNotAlignedToTheirSwizzleTrap) {
  emulation::driver().misalignment = 512;
  EXPECT_DEATH(run<64>(true, 200, Slip::none), "emulated GPU: trap");
  emulation::driver().misalignment = 0;
}

// Tile i of n takes n - i pieces of work, as under a causal mask. A block that finishes its task takes the next one;
// the last 16 blocks begin when communication frees their multiprocessors, after all other blocks.
TEST(HeadSchedule, GivesBlocksEveryTileOnceAndEqualShares) {
  constexpr int kBlocks = 132 - 16;  // an H200's, less 16
  for (const auto& [tiles, heads, mebibytes] :
       {std::array<int, 3>{16, 32, 1}, {16, 128, 1}, {32, 24, 2}, {64, 12, 4}, {64, 32, 4}, {8, 200, 1}, {3, 1, 64}}) {
    const HeadSchedule schedule(tiles, heads, int64_t{mebibytes} << 20, nullptr);
    std::vector<int> taken(static_cast<size_t>(tiles * heads)), work(kBlocks);
    for (int index = 0, which, tile; schedule.task(index, which, tile); ++index) {
      ++taken.at(static_cast<size_t>(which * tiles + tile));
      *std::min_element(work.begin(), work.end()) += tiles - tile;
    }
    EXPECT_EQ(taken, std::vector<int>(taken.size(), 1)) << tiles << " tiles of " << heads << " heads";
    if (tiles * heads < kBlocks) continue;
    const double mean = std::accumulate(work.begin(), work.end(), 0.0) / kBlocks;
    EXPECT_LT(*std::max_element(work.begin(), work.end()), 1.08 * mean) << tiles << " tiles of " << heads << " heads";
  }
}

// A kernel skips tasks that other blocks have taken, and leaves the counters ready for the next launch.
TEST(HopperAttention, TakesTasksFromTheCounter) {
  const auto device = create_cuda_device(0);
  const auto stream = device->create_compute_stream();
  constexpr int64_t kS = 300, kHeads = 3, kD = 64;
  Arena arena(*device, "test");
  const Tensor qkv = arena.allocate(DType::bf16, {kS, 1, 3 * kHeads * kD}),
               lse = arena.allocate(DType::f32, {kHeads, kS});
  const Tensor out = arena.allocate(DType::bf16, {kS, 1, kHeads * kD}), counters = arena.allocate(DType::i32, {2});
  std::vector<bf16> ones(static_cast<size_t>(qkv.numel()), bf16(1.0f)), read(static_cast<size_t>(out.numel()));
  device->copy_to_device(ones.data(), qkv, *stream);
  const AttentionArgs args{.qkv = qkv_views(qkv, kHeads, kHeads),
                           .out = heads_view(out, kHeads, kHeads),
                           .lse = lse.as<float>(),
                           .dropout = {}};
  const auto rows_done = [&](int taken) {
    std::array<int32_t, 2> state{taken, 0};
    device->copy_to_device(state.data(), counters, *stream);
    cudaMemsetAsync(out.data, 0, static_cast<size_t>(out.bytes()), raw(*stream));
    hopper_attention_forward(args, {counters.as<int>(), 2}, raw(*stream));
    device->copy_to_host(out, read.data(), *stream);
    device->copy_to_host(counters, state.data(), *stream);
    stream->synchronize();
    EXPECT_EQ(state, (std::array<int32_t, 2>{}));
    return std::ranges::count_if(read, [](bf16 x) { return static_cast<float>(x) != 0; }) / kD;
  };
  EXPECT_EQ(rows_done(0), kS * kHeads);
  EXPECT_EQ(rows_done(2), kS * kHeads - 2 * (kS - 192));  // 2 of 6 tasks: the last queries of two heads
  EXPECT_EQ(rows_done(6), 0);
}

}  // namespace
}  // namespace trivet
