#include "tools/plan/costs.h"

#include <gtest/gtest.h>

#include "tests/support/message_of.h"
#include "tests/support/where.h"

namespace trivet {
namespace {

// Round numbers for computing by hand: GEMMs reach 50 TFLOP/s in bf16 and 100 in FP8, memory 500 GB/s, and a network
// card 5 GB/s.
System round_system() {
  System s;
  s.fp32_tflops = 10, s.bf16_tflops = 100, s.fp8_tflops = 200, s.sms = 100;
  s.gemm_share = 0.5, s.gemm_k0 = 24, s.gemm_tile_m = 256, s.gemm_tile_n = 128, s.gemm_unaligned = 0.25;
  s.attention_forward = 0.5, s.attention_backward = 0.25;
  s.memory_gb_per_s = 1000, s.memory_share = 0.5, s.kernel_us = 2;
  s.gpus_per_node = 8, s.nvlink_gb_per_s = 100, s.nvlink_us = 1;
  s.network_gb_per_s = 10, s.network_share = 0.5, s.network_us = 10, s.collective_us = 5;
  return s;
}
constexpr double kMicro = 1e-6, kPrecise = 1e-12;
constexpr int64_t kGigabyte = 1'000'000'000;

double bf16_gemm(int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
  return gemm_seconds(round_system(), DType::bf16, {m, n, k, batch});
}
double collective(CommCall call, int64_t bytes, const GroupPlace& place) {
  return collective_seconds(round_system(), call, bytes, place);
}

TEST(PlanCosts, AFullWaveOfTilesTakesItsFlops) {
  // 10 x 10 tiles of 256 x 128 on 100 SMs; k takes as long as 1000 + 24
  const double wave = 2.0 * 2560 * 1280 * 1024 / 50e12;
  EXPECT_NEAR(bf16_gemm(2560, 1280, 1000), wave + 2 * kMicro, kPrecise);
  EXPECT_NEAR(bf16_gemm(1280, 640, 1000, 4), wave + 2 * kMicro, kPrecise) << "tiles of a batch share the wave";
  EXPECT_NEAR(bf16_gemm(1408, 2304, 1000), wave + 2 * kMicro, kPrecise) << "11 x 9 tiles of 128 x 256";
  EXPECT_NEAR(gemm_seconds(round_system(), DType::f32, {2560, 1280, 1000}), 10 * wave + 2 * kMicro, kPrecise);
  const double fp8_wave = 2.0 * 2560 * 1280 * 1032 / 100e12;
  for (const DType fp8 : {DType::e4m3, DType::e5m2})
    EXPECT_NEAR(gemm_seconds(round_system(), fp8, {2560, 1280, 1008}), fp8_wave + 2 * kMicro, kPrecise);
}

// The rate of a tile relative to a tile of 256 x 128, which needs fewer loads per FLOP.
double rate_of(double rows, double columns) {
  const double i = rows * columns / (rows + columns), largest = 256 * 128 / (256 + 128.0);
  return i / (i + 59) * (largest + 59) / largest;
}

TEST(PlanCosts, ATileMoreStartsAnotherWave) {
  // 11 x 10 tiles of 256 x 128 would take two waves; smaller tiles lose less, but more than the extra FLOPs cost
  const double full = bf16_gemm(2560, 1280, 1000) - 2 * kMicro, more = bf16_gemm(2568, 1280, 1000) - 2 * kMicro;
  EXPECT_GT(more, 1.1 * full);
  EXPECT_LT(more, 2 * full);
  // 12 x 11 tiles of 256 x 128 in two waves, or 11 x 15 of 256 x 96
  EXPECT_NEAR(bf16_gemm(2816, 1408, 1000) - 2 * kMicro,
              std::min(2 * full, 200 * 2.0 * 192 * 128 * 1024 / (rate_of(192, 128) * 50e12)), kPrecise);
}

TEST(PlanCosts, FewTilesSplitALongK) {
  // 16 tiles of 64 x 64, each split six ways, on 96 of 100 SMs, or fewer, larger tiles: never slower than four tiles of
  // 128 x 128 split eight ways
  const double wave = 100 * 2.0 * 128 * 128 * (100'000 / 8 + 24) / (rate_of(128, 128) * 50e12);
  const double sums = 8.0 * 8 * 256 * 256 / 500e9;
  EXPECT_LE(bf16_gemm(256, 256, 100'000), wave + sums + 2 * kMicro);
  // one SM per tile would take the time of the whole k
  EXPECT_LT(bf16_gemm(256, 256, 100'000), 100 * 2.0 * 64 * 64 * 100'024 / (rate_of(64, 64) * 50e12));
  // and all SMs together are no faster than the peak
  EXPECT_GT(bf16_gemm(256, 256, 100'000), 2.0 * 256 * 256 * 100'000 / 50e12);
}

TEST(PlanCosts, ALargeGemmReachesItsShareOfThePeakAndATinyOneItsLaunch) {
  const double n = 1 << 16;
  EXPECT_NEAR(2 * n * n * n / bf16_gemm(1 << 16, 1 << 16, 1 << 16), 50e12, 1e-3 * 50e12);
  EXPECT_GT(bf16_gemm(8, 8, 8), 2 * kMicro);
  EXPECT_LT(bf16_gemm(8, 8, 8), 2 * kMicro + 100 * 2.0 * 128 * 128 * 32 / (0.88 * 50e12));
}

TEST(PlanCosts, AGemmOfFewRowsTakesTheTimeToReadItsWeights) {
  // given: memory so slow that it is the bottleneck
  System system = round_system();
  system.memory_gb_per_s = 100;
  const double bytes = 2.0 * (8 * 8192 + 8192 * 8192 + 8 * 8192);

  // then
  EXPECT_NEAR(gemm_seconds(system, DType::bf16, {8, 8192, 8192}), bytes / 50e9 + 2 * kMicro, kPrecise);

  // and: FP8 operands take half the bytes, but the output does not
  const double fp8_bytes = 16 * 8192 + 8192.0 * 8192 + 2 * 16 * 8192;
  EXPECT_NEAR(gemm_seconds(system, DType::e4m3, {16, 8192, 8192}), fp8_bytes / 50e9 + 2 * kMicro, kPrecise);
}

TEST(PlanCosts, RowsOfOddLengthSlowAGemmDown) {
  const double aligned = bf16_gemm(2560, 1280, 1000) - 2 * kMicro;
  EXPECT_NEAR(bf16_gemm(2556, 1280, 1000) - 2 * kMicro, aligned / 0.25, kPrecise) << "2556 is no multiple of 8";
  EXPECT_NEAR(bf16_gemm(2552, 1280, 1000) - 2 * kMicro, aligned, kPrecise);
  EXPECT_NEAR(gemm_seconds(round_system(), DType::f32, {2556, 1280, 1000}),
              gemm_seconds(round_system(), DType::f32, {2560, 1280, 1000}), kPrecise)
      << "but one of 4";
}

TEST(PlanCosts, AttentionAndMemoryBoundOpsTakeTheirRates) {
  EXPECT_NEAR(attention_seconds(round_system(), DType::bf16, 50e9, false), 1e-3 + 2 * kMicro, kPrecise);
  EXPECT_NEAR(attention_seconds(round_system(), DType::bf16, 50e9, true), 2e-3 + 2 * kMicro, kPrecise);
  EXPECT_NEAR(memory_seconds(round_system(), 500e6), 1e-3 + 2 * kMicro, kPrecise);
  EXPECT_EQ(memory_seconds(round_system(), 0), 2 * kMicro);
}

TEST(PlanCosts, AGroupOfOneExchangesNothing) {
  for (const CommCall call : {CommCall::all_reduce, CommCall::all_gather, CommCall::barrier})
    EXPECT_EQ(collective(call, kGigabyte, {1, 1, 1}), 0);
  EXPECT_EQ(collective(CommCall::split, 0, {8, 8, 1}), 0);
}

TEST(PlanCosts, LargeMessagesInANodeTakeNvlinksBandwidth) {
  // the Simple protocol: 6.8 us, 3.8 us per hop, and all of the 100 GB/s
  const GroupPlace node{8, 8, 1};
  const double gather = (6.8 + 7 * 3.8) * kMicro + 0.875 * 1e-2, twice = (6.8 + 14 * 3.8) * kMicro + 1.75 * 1e-2;
  EXPECT_NEAR(collective(CommCall::all_gather, kGigabyte, node), gather, kPrecise);
  EXPECT_NEAR(collective(CommCall::reduce_scatter, kGigabyte, node), gather, kPrecise);
  EXPECT_NEAR(collective(CommCall::all_reduce, kGigabyte, node), twice, kPrecise);
  EXPECT_NEAR(collective(CommCall::broadcast, kGigabyte, node), (6.8 + 7 * 3.8) * kMicro + 1e-2, kPrecise);
}

TEST(PlanCosts, SmallMessagesTakeTheLatenciesOfLL) {
  EXPECT_NEAR(collective(CommCall::all_reduce, 8, {8, 8, 1}), (5 + 14 * 1) * kMicro + 14 / 50e9, kPrecise);
  EXPECT_NEAR(collective(CommCall::barrier, 0, {8, 8, 1}), 19 * kMicro, kPrecise);
}

TEST(PlanCosts, ARingOverNodesTakesAllCardsOfItsRanks) {
  // 8 cards at 5 GB/s each carry less than NVLink; 14 hops within nodes, 1 between
  EXPECT_NEAR(collective(CommCall::all_gather, kGigabyte, {16, 8, 1}),
              (6.8 + 14 * 3.8 + 21.3) * kMicro + 15.0 / 16 / 40, kPrecise);
}

// A group of one and a half nodes takes two: the ring crosses the network, at the speed of a full node's cards.
TEST(PlanCosts, AGroupThatFillsNoWholeNumberOfNodesCrossesTheNetwork) {
  const auto gather = [](int ranks) { return collective(CommCall::all_gather, kGigabyte, {ranks, 8, 1}); };
  EXPECT_GT(gather(12), gather(8) + 1e-3);
  EXPECT_GT(gather(9), gather(8) + 1e-3);
  EXPECT_NEAR(gather(12), (6.8 + 10 * 3.8 + 21.3) * kMicro + 11.0 / 12 / 40, kPrecise);
}

TEST(PlanCosts, RanksOfManyGroupsShareTheCards) {
  // one rank per node: one card each, up to 8 groups; 16 groups on 8 cards take twice as long
  const auto gather = [](int groups) { return collective(CommCall::all_gather, kGigabyte, {4, 1, groups}); };
  const double latency = (6.8 + 3 * 21.3) * kMicro;
  EXPECT_NEAR(gather(1), latency + 0.75 / 5, kPrecise);
  EXPECT_NEAR(gather(8), latency + 0.75 / 5, kPrecise);
  EXPECT_NEAR(gather(16), latency + 0.75 / 2.5, kPrecise);
}

TEST(PlanCosts, ASmallAllReduceOverManyNodesTakesTheTree) {
  // 6 levels of two hops up and down, instead of 126 steps of a ring; 33 nodes have 6 levels too, and 32 have 5
  const auto all_reduce = [](int nodes) { return collective(CommCall::all_reduce, 8, {nodes, 1, 8}); };
  EXPECT_NEAR(all_reduce(64), (5 + 2 * 6 * 2 * 10) * kMicro, 1e-8);
  EXPECT_NEAR(all_reduce(33), (5 + 2 * 6 * 2 * 10) * kMicro, 1e-8);
  EXPECT_NEAR(all_reduce(32), (5 + 2 * 5 * 2 * 10) * kMicro, 1e-8);
  EXPECT_NEAR(all_reduce(3), (5 + 4 * 10) * kMicro, 1e-8) << "a ring";
}

// With 8 ranks per node: in each node along a chain of 7 hops, up and down again.
TEST(PlanCosts, ATreeWalksTheChainOfANodeBothWays) {
  EXPECT_NEAR(collective(CommCall::all_reduce, 8, {512, 8, 1}), (5 + 2 * 7 * 1 + 2 * 6 * 2 * 10) * kMicro, 1e-8);
}

TEST(PlanCosts, ASwitchThatAddsIsTakenWhereItIsFaster) {
  // given
  System system = round_system();
  const auto all_reduce = [&] { return collective_seconds(system, CommCall::all_reduce, kGigabyte, {8, 8, 1}); };
  const double ring = all_reduce();

  // when, then
  system.nvls_gb_per_s = 50;
  EXPECT_EQ(all_reduce(), ring);
  system.nvls_gb_per_s = 80;
  EXPECT_NEAR(all_reduce(), 23 * kMicro + 1 / 80.0, kPrecise);
}

TEST(PlanCosts, ATransferTakesOneHop) {
  EXPECT_NEAR(transfer_seconds(round_system(), kGigabyte, false), (6.8 + 3.8) * kMicro + 1e-2, kPrecise);
  EXPECT_NEAR(transfer_seconds(round_system(), kGigabyte, true), (6.8 + 21.3) * kMicro + 0.2, kPrecise);
  EXPECT_NEAR(transfer_seconds(round_system(), 0, true), 15 * kMicro, kPrecise);
}

// A larger operation is never faster, on any system: no protocol, tile or split may be left out where it would win.
TEST(PlanCosts, GrowWithTheSizes) {
  for (const std::string& name : system_names(source_path("configs/systems"))) {
    const System system = load_system(name, {}, source_path("configs/systems"));
    if (system.kind() != SystemKind::gpu) continue;
    for (int64_t size = 8; size <= 1 << 14; size += 8 * (1 + size / 40)) {
      const auto gemm = [&](int64_t m, int64_t n, int64_t k) { return gemm_seconds(system, DType::bf16, {m, n, k}); };
      EXPECT_LE(gemm(size, 1024, 512), gemm(size + 8, 1024, 512)) << name << size;
      EXPECT_LE(gemm(1024, size, 512), gemm(1024, size + 8, 512)) << name << size;
      EXPECT_LE(gemm(1024, 512, size), gemm(1024, 512, size + 8)) << name << size;
    }
    for (const CommCall call : {CommCall::all_reduce, CommCall::all_gather, CommCall::broadcast})
      for (const GroupPlace& place : {GroupPlace{8, 8, 1}, {64, 8, 1}, {64, 1, 8}, {12, 8, 2}})
        for (int64_t bytes = 1; bytes < int64_t{1} << 36; bytes *= 2) {
          const double seconds = collective_seconds(system, call, bytes, place);
          EXPECT_LT(seconds, collective_seconds(system, call, 2 * bytes, place)) << name << name_of(call) << bytes;
          EXPECT_LE(seconds, collective_seconds(system, call, bytes,
                                                {2 * place.ranks, place.ranks_per_node, place.groups_per_node}) *
                                 1.0001)
              << name << name_of(call) << bytes;
        }
  }
}

TEST(PlanCosts, WhatHasNoPriceIsAnError) {
  EXPECT_NE(message_of<Error>([] {
              gemm_seconds(round_system(), DType::i64, {8, 8, 8});
            }).find("peak rate of int64"),
            std::string::npos);
  EXPECT_NE(message_of<Error>([] {
              System without = round_system();
              without.fp8_tflops = 0;
              gemm_seconds(without, DType::e5m2, {16, 16, 16});
            }).find("peak rate of e5m2"),
            std::string::npos);
  EXPECT_NE(message_of<Error>([] { bf16_gemm(8, 0, 8); }).find("without elements"), std::string::npos);
  EXPECT_NE(message_of<Error>([] {
              collective(CommCall::transfer, 8, {2, 2, 1});
            }).find("transfer_seconds"),
            std::string::npos);
}

}  // namespace
}  // namespace trivet
