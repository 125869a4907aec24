// The flight recorder: it records calls while streams execute them, and does not change the calls.
#include <cmath>
#include <gtest/gtest.h>
#include <thread>

#include "kernels/base/arena.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/comm/staged_comm.h"
#include "parallel/comm/world.h"
#include "tests/support/rank_values.h"
#include "tests/support/split_device.h"

namespace trivet {
namespace {

TEST(FlightRecorder, KeepsTheLastCallsAndEveryOpenOne) {
  // given: a call that never ends, and many that do
  FlightRecorder recorder(3);
  const int group = recorder.add_group("data", {3, 7}, 0);
  const int open = recorder.enqueue(group, {CommCall::transfer, DType::f32, Reduce::sum, -1, 5}, 1, false);
  recorder.start(open);
  const int calls = 3 * static_cast<int>(FlightRecorder::kCapacity);

  // when
  for (int i = 0; i < calls; ++i) {
    const int slot = recorder.enqueue(group, {CommCall::all_reduce, DType::bf16, Reduce::max, -1, i});
    recorder.start(slot);
    recorder.finish(slot, i + 1 == calls);
  }

  // then
  const FlightLog log = recorder.log();
  ASSERT_EQ(log.records.size(), FlightRecorder::kCapacity);
  EXPECT_EQ(log.records.front().number, 0u) << "open, and so still here";
  EXPECT_EQ(to_string(log.records.front()), "recv of 5 fp32");
  EXPECT_EQ(log.records.front().state, FlightState::started);
  EXPECT_EQ(recorder.oldest_started()->number, 0u);
  const FlightRecord& last = log.records.back();
  EXPECT_EQ(last.number, static_cast<uint64_t>(calls));
  EXPECT_EQ(last.call.sequence, static_cast<uint64_t>(calls) - 1);
  EXPECT_EQ(last.state, FlightState::failed);
  EXPECT_GE(last.started_ns, last.enqueued_ns);
  EXPECT_GE(last.done_ns, last.started_ns);
  EXPECT_EQ(log.groups[0].started, static_cast<uint64_t>(calls));
  EXPECT_EQ(log.groups[0].done, static_cast<uint64_t>(calls) - 1);
}

// The host may be a whole step ahead of its GPU.
TEST(FlightRecorder, HasRoomForAsManyCallsAsAreOpen) {
  // given
  constexpr int kCalls = 2 * static_cast<int>(FlightRecorder::kCapacity) + 1;
  FlightRecorder recorder(0);
  const int group = recorder.add_group("data", {0, 1}, 0);
  std::vector<int> slots;
  for (int i = 0; i < kCalls; ++i)
    slots.push_back(recorder.enqueue(group, {CommCall::all_reduce, DType::f32, Reduce::sum, -1, i}));
  // when
  for (int i = 0; i + 1 < kCalls; ++i) {
    recorder.start(slots[static_cast<size_t>(i)]);
    recorder.finish(slots[static_cast<size_t>(i)], false);
  }
  recorder.start(slots.back());
  // then
  EXPECT_EQ(recorder.oldest_started()->number, static_cast<uint64_t>(kCalls) - 1);
  const FlightLog log = recorder.log();
  ASSERT_EQ(log.records.size(), static_cast<size_t>(kCalls));
  for (size_t i = 0; i < log.records.size(); ++i) EXPECT_EQ(log.records[i].call.numel, static_cast<int64_t>(i));
  EXPECT_EQ(log.groups[0].started, static_cast<uint64_t>(kCalls));
  EXPECT_EQ(log.groups[0].done, static_cast<uint64_t>(kCalls) - 1);
}

TEST(FlightCommunicator, RecordsWhatEveryStreamCallsWhileItIsLookedAt) {
  constexpr int kRanks = 3, kRounds = 15;
  run_thread_ranks(kRanks, [](Communicator& plain) {
    // given: a rank with two groups on two streams, and a thread that reads the log all the time
    FlightRecorder recorder(plain.rank());
    const auto world = with_flight_recorder(plain, recorder);
    const auto pair = world->split({2, 1, 0}, "turned", comm_of("tensor"));
    RankStreams rank;
    const auto side = rank.device->create_side_stream(StreamPriority::normal);
    TraceRow row("side");
    side->set_trace_row(&row);
    std::atomic<bool> over = false;
    std::thread reader([&] {
      while (!over) {
        const FlightLog log = recorder.log();
        for (const FlightRecord& record : log.records) EXPECT_NE(record.state, FlightState::failed);
      }
    });

    // when
    std::vector<float> x(4, 1), y(6, 1), z(2), moved(1, static_cast<float>(world->rank()));
    for (int i = 0; i < kRounds; ++i) {
      world->all_reduce(tensor_of(x), Reduce::max, *rank.stream);
      pair->reduce_scatter(tensor_of(y), tensor_of(z), Reduce::sum, *side);
      pair->all_gather(tensor_of(z), tensor_of(y), *side);
    }
    side->synchronize();
    if (world->rank() == 0) world->send(tensor_of(moved), 2, *rank.stream);
    if (world->rank() == 2) world->recv(tensor_of(moved), 0, *rank.stream);
    world->barrier();
    over = true;
    reader.join();

    // then: the results are right, and so are the counts
    EXPECT_EQ(z[0], std::pow(3.f, kRounds));
    EXPECT_EQ(moved[0], world->rank() == 2 ? 0.f : static_cast<float>(world->rank()));
    const FlightLog log = recorder.log();
    ASSERT_EQ(log.groups.size(), 2u);
    EXPECT_EQ(log.groups[0].world_ranks, (std::vector{0, 1, 2}));
    EXPECT_EQ(log.groups[1].world_ranks, (std::vector{2, 1, 0}));
    EXPECT_EQ(log.groups[1].rank, 2 - world->rank());
    EXPECT_EQ(log.groups[0].done, kRounds + 2u) << "with a split and a barrier";
    EXPECT_EQ(log.groups[1].done, 2u * kRounds);
    EXPECT_EQ(log.groups[0].sent[2], world->rank() == 0 ? 1u : 0u);
    for (const FlightRecord& record : log.records) EXPECT_EQ(record.state, FlightState::done);
    std::vector<Span> spans;
    row.take(spans);
    ASSERT_EQ(spans.size(), 2u * kRounds);
    EXPECT_STREQ(spans[0].info.name, "reduce_scatter");
    EXPECT_EQ(spans[0].info.category, comm_of("tensor"));
    EXPECT_GT(spans[0].wire_start_ns, 0);
  });
}

// Calls on a device's own streams, on which the recorder must not run anything.
TEST(FlightCommunicator, FollowsTheCallsOfADevice) {
  run_thread_ranks(2, [](Communicator& world) {
    // given
    const auto device = test::create_split_device(false);
    const auto host = world.twin("host", comm_of("data"));
    FlightRecorder recorder(world.rank());
    const auto staged = create_staged_communicator(*host, *device);
    const auto recorded = with_flight_recorder(*staged, recorder);
    const auto group = recorded->twin("data", comm_of("data"));
    Arena arena(*device, "test");
    const Tensor data = arena.allocate(DType::i64, {4});
    const std::vector<int64_t> mine(4, world.rank() + 1);
    std::vector<int64_t> sum(4);
    const auto stream = device->create_compute_stream();
    device->copy_to_device(mine.data(), data, *stream);
    const auto last_state = [&] { return recorder.log().records.back().state; };
    // when: only rank 0 has called; then: the call is open on that rank
    if (world.rank() == 0) {
      group->all_reduce(data, Reduce::sum, *stream);
      while (last_state() != FlightState::started) std::this_thread::yield();
      EXPECT_EQ(recorder.oldest_started()->number, 0u);
    }
    world.barrier();
    if (world.rank() == 1) group->all_reduce(data, Reduce::sum, *stream);
    device->copy_to_host(data, sum.data(), *stream);
    stream->synchronize();
    // then: the call is done on both ranks
    EXPECT_EQ(sum, std::vector<int64_t>(4, 3));
    EXPECT_EQ(last_state(), FlightState::done);
    EXPECT_FALSE(recorder.oldest_started());
    const FlightLog log = recorder.log();
    ASSERT_EQ(log.groups.size(), 2u);
    EXPECT_EQ(log.groups[1].name, "data");
    EXPECT_EQ(log.groups[1].world_ranks, (std::vector<int>{0, 1}));
    EXPECT_EQ(log.groups[1].done, 1u);
    EXPECT_EQ(to_string(log.records.back()),
              to_string(CallSignature{CommCall::all_reduce, DType::i64, Reduce::sum, -1, 4}));
    // and: no call is lost if the host queues many ahead; this rank's counts must not make it seem late
    const auto queue_many = [&] {
      for (int i = 0; i < 600; ++i) group->all_reduce(data, Reduce::max, *stream);
    };
    if (world.rank() == 0) queue_many();  // the first call waits for rank 1
    host->barrier();
    if (world.rank() == 1) queue_many();
    stream->synchronize();
    const FlightLog later = recorder.log();
    EXPECT_EQ(later.groups[1].enqueued, 601u);
    EXPECT_EQ(later.groups[1].started, 601u);
    EXPECT_EQ(later.groups[1].done, 601u);
    // and: endless calls take bounded memory, because the recorder keeps only the last of them
    for (int i = 0; i < 1500; ++i) {
      group->all_reduce(data, Reduce::max, *stream);
      if (i % 100 == 0) stream->synchronize();
    }
    stream->synchronize();
    EXPECT_LE(recorder.log().records.size(), 4 * FlightRecorder::kCapacity) << "what 600 open calls take";
    world.barrier();
  });
}

// Injects a fault into a rank's nth call.
class SpoilsOneCall : public CallFaults {
 public:
  SpoilsOneCall(CallFault fault, int call) : fault_(fault), calls_(call) {}
  CallFault next_call() override { return --calls_ == 0 ? fault_ : CallFault::none; }

 private:
  const CallFault fault_;
  int calls_;
};

TEST(FlightCommunicator, FaultsStrikeTheCallsOfADevice) {
  const std::pair<CallFault, const char*> faults[] = {{CallFault::skip, "broadcast from 0 of 4 fp32"},
                                                      {CallFault::extra, "all_reduce(sum) of 1 int64"},
                                                      {CallFault::wrong_size, "all_gather of 6 fp32"},
                                                      {CallFault::wrong_type, "all_gather of 8 bf16"}};
  for (const auto& [fault, text] : faults) try {
      run_thread_ranks(2, [fault = fault](Communicator& world) {
        const auto device = test::create_split_device(false);
        FlightRecorder recorder(world.rank());
        SpoilsOneCall faults(world.rank() == 1 ? fault : CallFault::none, 2);
        const auto staged = create_staged_communicator(world, *device);
        const auto group = with_flight_recorder(*staged, recorder, &faults);
        Arena arena(*device, "test");
        const Tensor data = arena.allocate(DType::f32, {4}), all = arena.allocate(DType::f32, {8});
        const auto stream = device->create_compute_stream();
        FailureGuard guard(*group);
        group->all_reduce(data, Reduce::sum, *stream);
        group->all_gather(data, all, *stream);
        group->broadcast(data, 0, *stream);
        stream->synchronize();
      });
      ADD_FAILURE() << "nothing was thrown; expected " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 calls " + std::string(text)), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace trivet
