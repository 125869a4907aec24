#include "tools/preflight/preflight.h"

#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "base/files.h"
#include "parallel/comm/world.h"
#include "tests/support/temp_dir.h"
#include "tests/support/where.h"

namespace trivet {
namespace {

// Ranks with equal measurements, each on its own host, or `per_host` on each host.
Preflight healthy(size_t ranks, size_t per_host = 1) {
  Preflight p;
  Preflight::Numbers numbers;
  numbers.fill(std::nan(""));
  numbers[kGemm] = 20, numbers[kNetwork] = 1, numbers[kWrite] = 500, numbers[kClock] = 0;
  if (per_host > 1) numbers[kInHost] = 10;
  for (size_t rank = 0; rank < ranks; ++rank) p.hosts.push_back(fmt::format("n{}", rank / per_host));
  p.best = p.typical = std::vector(ranks, numbers);
  for (size_t a = 0; a < ranks; ++a)
    for (size_t b = a + 1; b < ranks; ++b)
      p.links.push_back(p.hosts[a] == p.hosts[b] ? Preflight::Link{a, b, kInHost, 10}
                                                 : Preflight::Link{a, b, kNetwork, 1});
  return p;
}

void set_link(Preflight& p, size_t a, size_t b, double rate) {
  for (Preflight::Link& link : p.links)
    if (link.a == std::min(a, b) && link.b == std::max(a, b)) link.rate = rate;
}

using Lines = std::vector<std::string>;

TEST(Preflight, OneSlowLinkIsNoSlowRank) {
  for (const size_t ranks : {3, 4, 8}) {
    Preflight p = healthy(ranks);
    set_link(p, 0, 2, 0.5);
    EXPECT_EQ(slow_parts(p), Lines{"link of rank 0 on n0 and rank 2 on n2: network 0.5 Gbit/s, 50.0% of the median 1"});
  }
}

TEST(Preflight, ARankWithSlowLinksOnlyIsNamedItself) {
  for (const size_t ranks : {3, 4, 8}) {
    Preflight p = healthy(ranks);
    for (size_t peer = 0; peer < ranks; ++peer)
      if (peer != 1) set_link(p, 1, peer, 0.6);
    p.best[1][kNetwork] = p.typical[1][kNetwork] = 0.6;
    EXPECT_EQ(slow_parts(p), Lines{"rank 1 on n1, all links: network 0.6 Gbit/s, 60.0% of the median 1"});
  }
}

// Of hosts whose wall clocks are 2.5 s ahead and 9 s behind rank 0's.
TEST(Preflight, ClocksAreComparedInMilliseconds) {
  constexpr std::array<int64_t, 4> kAheadNs = {0, 0, 2'500'000'000, -9'000'000'000};
  run_thread_ranks(4, [&](Communicator& world) {
    HostWorld host(world);
    const int64_t ahead = kAheadNs[static_cast<size_t>(world.rank())];
    const double ms = clock_ahead_ms(host, 7 + ahead, [ahead] { return now_ns() + ahead; });
    EXPECT_NEAR(ms, 1e-6 * static_cast<double>(ahead), 1000);
    if (world.rank() < 2) {
      EXPECT_EQ(ms, 0) << "on rank 0's host";
    }
  });
}

TEST(Preflight, AThrottledRankIsNamed) {
  Preflight p = healthy(4);
  p.best[3][kGemm] = p.typical[3][kGemm] = 12;
  p.best[2][kGemm] = 18.1, p.typical[2][kGemm] = 9;  // its best value is above 90 % of the median
  EXPECT_EQ(slow_parts(p), Lines{"rank 3 on n3: GEMM 12 TFLOP/s, 75.0% of the median 16"});
}

TEST(Preflight, OfTwoRanksNeitherIsBlamed) {
  Preflight p = healthy(2);
  p.best[1][kGemm] = p.typical[1][kGemm] = 2;
  p.best[0][kNetwork] = p.best[1][kNetwork] = 0.01;
  set_link(p, 0, 1, 0.01);
  EXPECT_EQ(slow_parts(p), Lines());
}

// Two hosts of four ranks, with links within a host and over the network.
TEST(Preflight, LinksInAHostAreJudgedApart) {
  Preflight p = healthy(8, 4);
  EXPECT_EQ(slow_parts(p), Lines());
  set_link(p, 1, 3, 5);
  set_link(p, 1, 5, 0.5);
  EXPECT_EQ(slow_parts(p), (Lines{"link of rank 1 on n0 and rank 3 on n0: in host 5 Gbit/s, 50.0% of the median 10",
                                  "link of rank 1 on n0 and rank 5 on n1: network 0.5 Gbit/s, 50.0% of the median 1"}));
  // Two ranks on one host and one on another: links of a kind are judged only if there are three of that kind.
  Preflight few = healthy(3, 2);
  set_link(few, 0, 1, 1);
  EXPECT_EQ(slow_parts(few), Lines());
}

TEST(Preflight, DisksMayDifferMoreAndClocksLess) {
  Preflight p = healthy(4);
  p.best[1][kWrite] = 300, p.best[2][kWrite] = 200;
  p.best[3][kClock] = -2500, p.best[2][kClock] = 90;
  EXPECT_EQ(slow_parts(p),
            (Lines{"rank 2 on n2: write 200 MB/s, 40.0% of the median 500",
                   "rank 3 on n3: its clock is 2.500 s behind rank 0's; expected hosts that follow NTP"}));
}

TEST(Preflight, WhatNvmlSaysIsJudged) {
  Preflight p = healthy(4);
  for (auto* ranks : {&p.best, &p.typical})
    for (auto& rank : *ranks) rank[kSmClock] = 1980, rank[kLanes] = 16, rank[kErrors] = 0;
  EXPECT_EQ(slow_parts(p), Lines());
  p.best[1][kSmClock] = 1200, p.best[2][kLanes] = 8, p.best[3][kErrors] = 2;
  EXPECT_EQ(slow_parts(p), (Lines{"rank 1 on n1: SM 1200 MHz, 60.6% of the median 1980",
                                  "rank 2 on n2: PCIe 8 lanes, 50.0% of the median 16",
                                  "rank 3 on n3: its GPU has had 2 memory errors (ECC) that could not be corrected"}));
}

TEST(Preflight, TheTableFitsATerminal) {
  Preflight p = healthy(4, 2);
  for (auto& numbers : p.best) {
    numbers.fill(-123456.789);
    numbers[kSmClock] = 1980, numbers[kLanes] = 16, numbers[kErrors] = 0;
  }
  p.hosts[0] = "a-very-long-name-of-a-host.somewhere";
  const std::string text = render({table_of(p)}, 80);
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    EXPECT_LE(end - begin, 80u + 3) << text;  // an ellipsis is three bytes
  EXPECT_NE(text.find("median"), std::string::npos) << "with which those that are named are compared";
  EXPECT_EQ(json_of(healthy(4))["ranks"][3]["gemm_tflops"], 20);
  EXPECT_EQ(json_of(healthy(4))["links"][5], (nlohmann::ordered_json{{"ranks", {2, 3}}, {"network_gbit_per_s", 1}}));
  EXPECT_EQ(nlohmann::json::parse(json_of(healthy(4)).dump())["ranks"][3]["read_mb_per_s"], nullptr);
}

// ---- the command

class PreflightProgram : public testing::Test {
 protected:
  PreflightProgram() {
    std::string corpus;
    for (int i = 0; i < 2000; ++i) corpus += fmt::format("{} words of line {}\n", i * i % 97, i);
    write_file(dir_ / "corpus.txt", corpus);
    write_file(dir_ / "run.yaml", R"(
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 4, seq_length: 16}
batch: {global_batch_size: 4}
data: {path: corpus, split: "100,0,0"}
device: {kind: cpu, threads_per_rank: 1, peak_tflops: 1}
checkpoint: {save_interval: 2}
train: {train_iters: 2, run_dir: run}
)");
    EXPECT_EQ(run("data prepare --input corpus.txt --output corpus --tokenizer bytes"), 0) << text("err");
  }
  int run(const std::string& arguments) {
    const int status = std::system(
        fmt::format("cd {} && env -u OMPI_COMM_WORLD_SIZE {} {} >out 2>err", dir_ / "", program_path(), arguments)
            .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string text(const std::string& name) { return read_small_file(dir_ / name, 1 << 20); }

  const TempDir dir_;
};

TEST_F(PreflightProgram, MeasuresAndTellsAllThatFails) {
  ASSERT_EQ(run("train run.yaml --ranks 2"), 0) << text("err");
  ASSERT_EQ(run("preflight run.yaml --ranks 2 --json p.json"), 0) << text("out") << text("err");
  EXPECT_NE(text("out").find("nothing is slow and nothing has failed"), std::string::npos) << text("out");
  const auto json = nlohmann::json::parse(text("p.json"));
  ASSERT_EQ(json["ranks"].size(), 2u);
  for (const auto& rank : json["ranks"])
    for (const char* key : {"gemm_tflops", "memory_gb_per_s", "in_host_gbit_per_s", "all_reduce_gbit_per_s",
                            "write_mb_per_s", "read_mb_per_s"})
      EXPECT_GT(rank[key], 0) << key;
  for (const std::string& name : list_directory(dir_ / "run")) EXPECT_FALSE(name.starts_with("preflight")) << name;

  // a byte of the checkpoint is changed, and the data is missing
  const std::string shard = dir_ / "run/checkpoints/step-00000002/rank-00001.safetensors";
  std::string bytes = read_small_file(shard, 1 << 20);
  bytes.back() ^= 1;
  write_file(shard, bytes);
  EXPECT_EQ(run("preflight run.yaml --ranks 1 --set data.path=nowhere --set model.vocab_size=512"), 65);
  for (const char* part : {"failed: run/checkpoints/step-00000002/rank-00001.safetensors",
                           "failed: data.path: there is no dataset nowhere", "GEMM"})
    EXPECT_NE(text("out").find(part), std::string::npos) << part << text("out") << text("err");
}

}  // namespace
}  // namespace trivet
