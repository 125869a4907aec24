// The MPI back end over real processes: mpirun starts this program. Rank 0 prints GoogleTest's output, the others only
// failures. The program fails on every rank if a test failed on any.
#include <cstdio>
#include <cstdlib>
#include <gtest/gtest.h>

#include "parallel/comm/mpi_collective.h"
#include "parallel/comm/world.h"
#include "tests/support/comm_cases.h"
#include "tests/support/rank_values.h"

namespace trivet {
namespace {

class MpiComm : public testing::Test {
 public:
  MpiComm(Communicator& world, const CommCase& the_case) : world_(world), case_(the_case) {}
  void TestBody() override {
    case_.body(world_);
    world_.barrier();
  }

 private:
  Communicator& world_;
  CommCase case_;
};

class FailuresOnly : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed())
      std::fprintf(stderr, "[rank %d] %s:%d: %s\n", rank_, result.file_name() ? result.file_name() : "",
                   result.line_number(), result.message());
  }

 private:
  int rank_;
};

// Runs over emulated links, or over the real links of a netlab (launch/netlab).
void no_span_is_shorter_than_its_floor(Communicator& world) {
  if (const char* gbps = std::getenv("TRIVET_NETLAB_GBPS"))
    return spans_keep_to_their_floors(world, {.gbps = std::atof(gbps)}, false, 0.04);
  const Link link{.latency_us = 300, .gbps = 1};
  const auto linked = with_links(world, {{"data", link}});
  spans_keep_to_their_floors(*linked->twin("group", comm_of("data")), link, true, 0.01);
}

// In groups of any size: a chunk of a sum holds whole elements, and the bounce buffer stays within its limit.
void chunks_hold_whole_elements(Communicator&) {
  for (int ranks = 2; ranks <= 1024; ++ranks)
    for (const int64_t bytes : {1, 4096, 100'000, 131'076, 1'048'580, 17'000'000, 2'000'000'000}) {
      const int64_t chunk = MpiCollective::sum_chunk(bytes, ranks);
      EXPECT_EQ(chunk % 4096, 0) << ranks << " ranks, " << bytes << " bytes";
      // Beyond 129 ranks, chunks are as small as they get.
      if (ranks <= 129) {
        EXPECT_LE(4 * (ranks - 1) * chunk, MpiCollective::kMostBounce) << ranks << " ranks, " << bytes << " bytes";
      }
    }
}

int run_all(Communicator& world) {
  std::vector<CommCase> cases = comm_cases();
  cases.push_back({"chunks_hold_whole_elements", chunks_hold_whole_elements});
  cases.push_back({"no_span_is_shorter_than_its_floor", no_span_is_shorter_than_its_floor});
  for (const CommCase& the_case : cases)
    testing::RegisterTest("MpiComm", the_case.name, nullptr, std::to_string(world.size()).c_str(), __FILE__, __LINE__,
                          [&world, the_case]() -> MpiComm* { return new MpiComm(world, the_case); });
  if (world.rank() != 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly(world.rank()));
  }
  RankStreams rank;
  std::vector<int64_t> failed = {RUN_ALL_TESTS()};
  world.all_reduce(tensor_of(failed), Reduce::max, *rank.stream);
  return static_cast<int>(failed[0]);
}

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int result = 1;
  trivet::run_mpi_rank([&](trivet::Communicator& world) { result = trivet::run_all(world); });
  return result;
}
