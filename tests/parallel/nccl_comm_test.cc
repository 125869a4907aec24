// The NCCL back end: each rank has its own thread and GPU on this host. Skipped without a GPU; on a single one only the
// tests of one-rank groups run. Sums add small integers or two numbers, so that NCCL's order of addition gives the same
// bits. In a build with an emulated CUDA, all tests run (tests/emulation).
#include "parallel/comm/nccl_comm.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <gtest/gtest.h>
#include <set>
#include <thread>

#include "kernels/base/arena.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/comm/host_world.h"
#include "parallel/comm/world.h"
#include "tests/support/comm_cases.h"
#include "tests/support/comm_through_device.h"
#include "tests/support/rank_values.h"

namespace trivet {
namespace {

constexpr double kTimeout = 60;

template <class F>
void expect_error(const F& f, const std::string& text) {
  try {
    f();
    ADD_FAILURE() << "nothing was thrown; expected " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(NcclComm, EveryCallMovesWhatItShould) {
  if (!built_with_nccl() || cuda_device_count() == 0) GTEST_SKIP() << "no NCCL, or no GPU";
  run_thread_ranks(std::min(cuda_device_count(), 8), [](Communicator& world) {
    const auto device = create_cuda_device(world.rank());
    Arena arena(*device, "nccl test");
    const auto stream = device->create_side_stream(StreamPriority::high);
    const auto nccl = create_nccl_communicator(world, *device, kTimeout);
    const auto group = nccl->split(ranks_from(world.size() - 1, 0), "reversed", comm_of("data"));
    ASSERT_EQ(group->rank(), world.size() - 1 - world.rank());
    const int64_t n = 10'000, size = group->size(), rank = group->rank();
    const auto sum = [&](int64_t i) { return rank_order_sum<float>(group->size(), i, small_integer<float>); };

    // given: each rank's numbers on its GPU
    auto mine = filled<float>(n * size, group->rank(), small_integer<float>);
    const Tensor full = arena.allocate(DType::f32, {n * size}), shard = arena.allocate(DType::f32, {n});
    device->copy_to_device(mine.data(), full, *stream);
    stream->synchronize();

    // when they are reduced to shards, gathered, and sent around the ring
    group->reduce_scatter(full, shard, Reduce::sum, *stream);
    group->all_gather(shard, full, *stream);
    std::vector<float> gathered(mine.size()), received(static_cast<size_t>(n));
    device->copy_to_host(full, gathered.data(), *stream);
    if (size > 1) {
      // Even ranks send first: on a GPU, a send may wait for its receiver.
      const int next = static_cast<int>((rank + 1) % size), previous = static_cast<int>((rank + size - 1) % size);
      const Tensor in = arena.allocate(DType::f32, {n});
      if (rank % 2 == 0) group->send(shard, next, *stream);
      group->recv(in, previous, *stream);
      if (rank % 2 == 1) group->send(shard, next, *stream);
      device->copy_to_host(in, received.data(), *stream);
    }
    group->all_reduce(shard, Reduce::max, *stream);
    group->broadcast(shard, 0, *stream);
    stream->synchronize();
    group->barrier();

    // then every element is where it belongs
    expect_elements(gathered, sum, "reduce_scatter, all_gather");
    if (size > 1)
      expect_elements(
          received, [&](int64_t i) { return sum((rank + size - 1) % size * n + i); }, "send, recv");
  });
}

// ---- the cases that every back end passes

// The common cases, except for those that need what NCCL does not guarantee: sends that do not block, a maximum that
// propagates NaN, and the time at which a call was matched.
std::vector<CommCase> cases_of_nccl() {
  std::vector<CommCase> cases = collective_cases();
  for (const CommCase& more : group_cases()) cases.push_back(more);
  const std::set<std::string> others{"transfers_arrive_in_order", "neighbours_exchange", "not_a_number_is_not_lost"};
  std::erase_if(cases, [&](const CommCase& c) { return others.contains(c.name); });
  return cases;
}

void run_on_gpus(int ranks, const std::function<void(Communicator& nccl, Device& device)>& body,
                 double timeout_s = kTimeout) {
  run_thread_ranks(ranks, [&](Communicator& world) {
    const auto device = create_cuda_device(world.rank());
    const auto nccl = create_nccl_communicator(world, *device, timeout_s);
    FailureGuard guard(*nccl);  // without it, the other ranks would wait for this rank until their timeout
    body(*nccl, *device);
  });
}

class NcclCases : public testing::TestWithParam<CommCase> {};

TEST_P(NcclCases, conforms) {
  if (!built_with_nccl() || cuda_device_count() < 2) GTEST_SKIP() << "no NCCL, or no two GPUs";
  run_on_gpus(2, [](Communicator& nccl, Device& device) {
    Communicator through = through_device(nccl, device);
    GetParam().body(through);
  });
}
INSTANTIATE_TEST_SUITE_P(two_ranks, NcclCases, testing::ValuesIn(cases_of_nccl()),
                         [](const auto& info) { return info.param.name; });

// ---- waits that must not block other ranks

TEST(NcclComm, NeighboursInARingSendAtTheSameTime) {
  const int ranks = std::min(cuda_device_count(), 3);
  if (!built_with_nccl() || ranks < 2) GTEST_SKIP() << "no NCCL, or no two GPUs";
  run_on_gpus(ranks, [](Communicator& nccl, Device& device) {
    Arena arena(device, "nccl test");
    const auto stream = device.create_side_stream(StreamPriority::normal);
    const int64_t n = 1000;
    const int next = (nccl.rank() + 1) % nccl.size(), previous = (nccl.rank() + nccl.size() - 1) % nccl.size();
    const Tensor out = arena.allocate(DType::f32, {n}), in = arena.allocate(DType::f32, {n});
    for (int round = 0; round < 3; ++round) {
      const auto value = [round](int rank, int64_t i) { return random_value<float>(rank, i + round * n); };
      auto sent = filled<float>(n, nccl.rank(), value);
      std::vector<float> received(sent.size());
      device.copy_to_device(sent.data(), out, *stream);
      nccl.exchange(out, next, in, previous, *stream);
      device.copy_to_host(in, received.data(), *stream);
      stream->synchronize();
      expect_elements(
          received, [&](int64_t i) { return value(previous, i); }, "received");
    }
  });
}

// As in the executor, both ranks at the ends of two channels post the receive before they have anything to send.
TEST(NcclComm, ThePairsOfAPipelineReceiveBeforeTheySend) {
  if (!built_with_nccl() || cuda_device_count() < 2) GTEST_SKIP() << "no NCCL, or no two GPUs";
  run_on_gpus(2, [](Communicator& nccl, Device& device) {
    // given: a channel in each direction, which the ranks destroy in different orders
    const int peer = 1 - nccl.rank();
    auto forward = nccl.twin("0 to 1", comm_of("pipeline"));
    auto backward = nccl.twin("1 to 0", comm_of("pipeline"));
    auto& in = nccl.rank() == 0 ? backward : forward;
    auto& out = nccl.rank() == 0 ? forward : backward;
    Arena arena(device, "nccl test");
    const auto receiving = device.create_side_stream(StreamPriority::normal);
    const auto sending = device.create_side_stream(StreamPriority::normal);
    const Tensor x = arena.allocate(DType::f32, {500}), y = arena.allocate(DType::f32, {500});
    // when
    in->recv(y, peer, *receiving);
    auto sent = filled<float>(500, nccl.rank(), random_value<float>);
    device.copy_to_device(sent.data(), x, *sending);
    out->send(x, peer, *sending);
    std::vector<float> received(500);
    device.copy_to_host(y, received.data(), *receiving);
    receiving->synchronize();
    sending->synchronize();
    // then
    expect_elements(
        received, [&](int64_t i) { return random_value<float>(peer, i); }, "received");
    in.reset();
    out.reset();
  });
}

// ---- failures

TEST(NcclComm, AnAbortEndsWhatAStreamWaitsIn) {
  if (!built_with_nccl() || cuda_device_count() < 2) GTEST_SKIP() << "no NCCL, or no two GPUs";
  try {
    run_on_gpus(2, [](Communicator& nccl, Device& device) {
      Arena arena(device, "nccl test");
      const auto stream = device.create_side_stream(StreamPriority::normal);
      const auto event = device.create_event();
      const Tensor x = arena.allocate(DType::f32, {10});
      if (nccl.rank() == 1) return nccl.barrier();  // rank 1 never calls all_reduce; the abort ends this barrier, too
      nccl.all_reduce(x, Reduce::sum, *stream);
      stream->record(*event);
      nccl.abort("enough");
      expect_error([&] { stream->synchronize(); }, "enough");
      expect_error([&] { event->synchronize(); }, "enough");
      expect_error([&] { nccl.all_reduce(x, Reduce::sum, *stream); }, "enough");
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("enough"), std::string::npos) << error.what();
  }
}

// To free a communicator's resources, NCCL may wait for the whole GPU.
TEST(NcclComm, AnAbortEndsWhatSeveralGroupsWaitInAtTheSameTime) {
  if (!built_with_nccl() || cuda_device_count() < 2) GTEST_SKIP() << "no NCCL, or no two GPUs";
  EXPECT_THROW(run_on_gpus(2,
                           [](Communicator& nccl, Device& device) {
                             const auto comm_stream = nccl.twin("comm_stream", comm_of("data"));
                             if (nccl.rank() == 1) return nccl.barrier();  // until the abort
                             Arena arena(device, "nccl test");
                             const auto first = device.create_side_stream(StreamPriority::normal);
                             const auto second = device.create_side_stream(StreamPriority::normal);
                             const Tensor x = arena.allocate(DType::f32, {10}), y = arena.allocate(DType::f32, {10});
                             nccl.all_reduce(x, Reduce::sum, *first);
                             comm_stream->all_reduce(y, Reduce::sum, *second);
                             nccl.abort("enough");
                             expect_error([&] { first->synchronize(); }, "enough");
                             expect_error([&] { second->synchronize(); }, "enough");
                           }),
               Error);
}

TEST(NcclComm, ARankThatFailsEndsWhatTheStreamsOfTheOthersWaitIn) {
  if (!built_with_nccl() || cuda_device_count() < 2) GTEST_SKIP() << "no NCCL, or no two GPUs";
  try {
    run_on_gpus(2, [](Communicator& nccl, Device& device) {
      if (nccl.rank() == 1) throw DataError("on purpose");
      Arena arena(device, "nccl test");
      const auto stream = device.create_side_stream(StreamPriority::normal);
      const Tensor x = arena.allocate(DType::f32, {10});
      nccl.all_reduce(x, Reduce::sum, *stream);
      expect_error([&] { stream->synchronize(); }, "rank 1 has failed");
      expect_error([&] { nccl.all_reduce(x, Reduce::sum, *stream); }, "rank 1 has failed");
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()), "rank 1: on purpose");
  }
}

// Rank 0 has finished and destroys its groups, for which NCCL synchronizes with the peers.
TEST(NcclComm, ARankThatIsThroughDoesNotWaitForOneThatFails) {
  if (!built_with_nccl() || cuda_device_count() < 2) GTEST_SKIP() << "no NCCL, or no two GPUs";
  try {
    run_on_gpus(
        2,
        [](Communicator& nccl, Device&) {
          if (nccl.rank() == 1) throw DataError("on purpose");
        },
        3600);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()), "rank 1: on purpose");
  }
}

// Rank 1 gets the id, and then hangs or fails.
TEST(NcclComm, ARankThatDoesNotComeEndsTheStartOfTheOthers) {
  if (!built_with_nccl() || cuda_device_count() < 2) GTEST_SKIP() << "no NCCL, or no two GPUs";
  for (const bool fails : {false, true}) try {
      run_thread_ranks(2, [&](Communicator& world) {
        if (world.rank() == 0) {
          const auto device = create_cuda_device(0);
          create_nccl_communicator(world, *device, fails ? 3600 : 0.05);
          return;
        }
        HostWorld(world).broadcast(std::array<char, 128>{});
        if (fails) throw DataError("on purpose");
        while (world.failure().rank < 0) std::this_thread::yield();
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      const std::string text = error.what();
      const char* const expected = fails ? "rank 1: on purpose"
                                         : "rank 0: group 'world', its rank 0 of 2: ncclCommInitRankConfig: not done "
                                           "after 0.05 s: another rank of the group has not reached it";
      EXPECT_NE(text.find(expected), std::string::npos) << text;
    }
}

bool nccl_is_emulated() {
  return built_with_nccl() && cuda_device_count() > 0 && create_cuda_device(0)->name() == "emulated GPU";
}

// The real NCCL would hang or transfer wrong data. The emulated one reports an error to the ranks while their streams
// wait, as it would report a broken link. Rank 2 waits on the host.
TEST(NcclComm, AnAsynchronousErrorEndsEveryRankWhereverItWaits) {
  if (!nccl_is_emulated()) GTEST_SKIP() << "of the emulated NCCL";
  std::atomic<int> told = 0;
  const auto rank_main = [&](Communicator& nccl, Device& device) {
    Arena arena(device, "nccl test");
    const auto stream = device.create_side_stream(StreamPriority::normal);
    const Tensor x = arena.allocate(DType::f32, {nccl.rank() == 1 ? 11 : 10});
    try {
      nccl.barrier();
      if (nccl.rank() < 2) nccl.all_reduce(x, Reduce::sum, *stream);
      if (nccl.rank() < 2) stream->synchronize();
      nccl.barrier();
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("rank 1 calls all_reduce of 11"), std::string::npos) << text;
      ++told;
      throw;
    }
  };
  EXPECT_THROW(run_on_gpus(3, rank_main), Error);
  EXPECT_EQ(told, 3);
}

// The receiver's connection breaks after connect_pair(), in its second transfer; the sender's NCCL does not notice.
TEST(NcclComm, AConnectionThatBreaksInATransferIsNamedOnBothSides) {
  if (!nccl_is_emulated()) GTEST_SKIP() << "of the emulated NCCL";
  setenv("TRIVET_EMULATED_NCCL_FAULT", "0 to 1:1:2", 1);
  std::atomic<int> told = 0;
  try {
    run_thread_ranks(2, [&](Communicator& world) {
      const auto device = create_cuda_device(world.rank());
      FlightRecorder recorder(world.rank());
      const auto plain = create_nccl_communicator(world, *device, kTimeout);
      const auto nccl = with_flight_recorder(*plain, recorder);
      const auto channel = nccl->twin("0 to 1", comm_of("pipeline"));
      Arena arena(*device, "nccl test");
      const auto stream = device->create_side_stream(StreamPriority::normal);
      const Tensor x = arena.allocate(DType::f32, {500});
      const FailureGuard guard(*nccl);
      try {
        for (int i = 0; i < 3; ++i) {
          if (world.rank() == 0) channel->send(x, 1, *stream);
          else channel->recv(x, 0, *stream);
        }
        stream->synchronize();
      } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("group '0 to 1', its rank 1 of 2: remote error (a connection is gone"), std::string::npos)
            << text;
        EXPECT_NE(text.find("this rank is in call 1 of group '0 to 1', recv of 500 fp32 from rank 0"),
                  std::string::npos)
            << text;
        EXPECT_EQ(text.find("rank 1 has failed: ") == 0, world.rank() == 0) << text;
        ++told;
        const auto records = recorder.log().records;
        const auto failed = std::count_if(records.begin(), records.end(),
                                          [](const FlightRecord& r) { return r.state == FlightState::failed; });
        // The first transfer has finished; the third may have been refused before it was recorded.
        EXPECT_TRUE(failed == 1 || failed == 2) << failed;
        EXPECT_NE(records.front().state, FlightState::failed);
        throw;
      }
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error&) {
  }
  unsetenv("TRIVET_EMULATED_NCCL_FAULT");
  EXPECT_EQ(told, 2);
}

// Buffers may also be used in two groups, one after the other. The emulated NCCL refuses memory that it did not
// allocate, a call in which only some ranks use registered memory, and freeing memory registered with a group.
TEST(NcclComm, WorksInBuffersThatAreRegistered) {
  if (!built_with_nccl() || cuda_device_count() < 2) GTEST_SKIP() << "no NCCL, or no two GPUs";
  std::atomic<int> told = 0;
  const auto rank_main = [&](Communicator& nccl, Device& device) {
    const auto stream = device.create_side_stream(StreamPriority::normal);
    const auto comm_stream = nccl.twin("comm_stream", comm_of("data"));
    Memory* const memory = nccl.buffer_memory();
    ASSERT_NE(memory, nullptr);
    Arena buffers(device, *memory, "buffers"), elsewhere(device, "elsewhere");
    buffers.allocate(DType::f32, {3});  // a separate block
    const Tensor full = buffers.allocate(DType::f32, {1000});
    std::vector<std::shared_ptr<void>> registered;
    for (Communicator* group : {&nccl, comm_stream.get()})
      for (const Tensor& block : buffers.blocks()) registered.push_back(group->register_buffer(block));
    ASSERT_EQ(buffers.blocks().size(), 2);

    auto numbers = filled<float>(1000, nccl.rank(), small_integer<float>);
    device.copy_to_device(numbers.data(), full, *stream);
    nccl.reduce_scatter(full, full.slice(500 * nccl.rank(), 500), Reduce::sum, *stream);
    comm_stream->all_gather(full.slice(500 * nccl.rank(), 500), full, *stream);
    device.copy_to_host(full, numbers.data(), *stream);
    stream->synchronize();
    expect_elements(
        numbers, [](int64_t i) { return rank_order_sum<float>(2, i, small_integer<float>); }, "in place");

    if (!nccl_is_emulated()) return;
    EXPECT_THROW(nccl.register_buffer(elsewhere.allocate(DType::f32, {10})), Error);
    try {
      const Tensor x = nccl.rank() == 0 ? full.slice(100, 10) : elsewhere.allocate(DType::f32, {10});
      nccl.all_reduce(x, Reduce::sum, *stream);
      stream->synchronize();
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("400 bytes into a registered buffer"), std::string::npos) << text;
      ++told;
    }
  };
  if (!nccl_is_emulated()) return run_on_gpus(2, rank_main);
  try {
    run_on_gpus(2, rank_main);
  } catch (const Error&) {
  }
  EXPECT_EQ(told, 2);
}

TEST(NcclComm, SaysSoWhereItIsNotBuilt) {
  if (built_with_nccl()) GTEST_SKIP() << "this build has NCCL";
  run_thread_ranks(1, [](Communicator& world) {
    const auto device = create_cpu_device();
    EXPECT_THROW(create_nccl_communicator(world, *device, kTimeout), ConfigError);
  });
}

}  // namespace
}  // namespace trivet
