// The MPI back end over real processes: mpirun starts this program. Rank 0 prints GoogleTest's output, the others only
// failures. The program fails on every rank if a test failed on any.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <random>
#include <sched.h>
#include <thread>
#include <unistd.h>

#include "parallel/comm/mpi_collective.h"
#include "parallel/comm/mpi_progress.h"
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

// No call waits until the progress thread happens to look: it sleeps for a minute here, so a lost wake-up is a call
// that lasts a minute, in each of 40 rounds. Calls begin while the thread sleeps, and while it or another thread moves
// messages; some outlast the call whose thread moved theirs.
void no_wake_up_is_lost(Communicator& world) {
  const int size = world.size(), next = (world.rank() + 1) % size, before = (world.rank() + size - 1) % size;
  if (size % 2 != 0) return;
  // A group makes one call at a time: this rank receives in one, and sends in the other.
  std::unique_ptr<Communicator> rings[2];
  for (auto& ring : rings) ring = world.twin("ring", comm_of("pipeline"));
  Communicator &incoming = *rings[world.rank() % 2], &outgoing = *rings[next % 2];
  const std::chrono::nanoseconds usual = MpiProgress::least_idle;
  MpiProgress::least_idle = std::chrono::minutes(1);
  RankStreams rank;
  const auto receives = rank.device->create_side_stream(StreamPriority::high);
  const auto sends = rank.device->create_side_stream(StreamPriority::high);
  std::mt19937 random(static_cast<unsigned>(world.rank()));
  const auto pass_time = [&] {  // so that the thread is found asleep, awake, or in between
    for (const int64_t end = now_ns() + static_cast<int64_t>(random() % 300'000); now_ns() < end;) sched_yield();
  };
  for (int64_t round = 0; round < 40; ++round) {
    std::vector<int64_t> sent(3, round), got(3), sum(size_t{1} << (round % 16), round), again = sum;
    incoming.recv(tensor_of(got), before, *receives);
    for (auto* const x : {&sum, &again}) {
      pass_time();
      world.all_reduce(tensor_of(*x), Reduce::sum, *rank.stream);
    }
    pass_time();
    outgoing.send(tensor_of(sent), next, *sends);
    receives->synchronize();
    sends->synchronize();
    EXPECT_EQ(got, sent);
    EXPECT_EQ(sum.back(), round * size);
  }
  // A send, while neither rank makes another call: a file of the receiver's tells that it has arrived.
  std::vector<int64_t> job{getpid()}, sum{1};
  world.broadcast(tensor_of(job), 0, *rank.stream);
  const auto arrival = [&](int at) {
    return std::filesystem::temp_directory_path() / fmt::format("trivet-arrival-{}-{}", job[0], at);
  };
  for (int round = 0; round < 20; ++round) {
    const bool is_sender = world.rank() % 2 == 0;
    if (!is_sender) incoming.recv(tensor_of(job), before, *receives);
    if (is_sender || round % 2 > 0) pass_time();
    world.all_reduce(tensor_of(sum), Reduce::max, *rank.stream);
    pass_time();
    if (is_sender) {
      outgoing.send(tensor_of(job), next, *sends);
      while (!std::filesystem::remove(arrival(next))) std::this_thread::yield();
    } else {
      receives->synchronize();
      std::ofstream{arrival(world.rank())};
    }
  }
  MpiProgress::least_idle = usual;
}

int run_all(Communicator& world) {
  std::vector<CommCase> cases = comm_cases();
  cases.push_back({"chunks_hold_whole_elements", chunks_hold_whole_elements});
  cases.push_back({"no_wake_up_is_lost", no_wake_up_is_lost});
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
