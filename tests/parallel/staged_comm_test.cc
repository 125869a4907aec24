// The staged back end: over host memory, over memory that the host cannot touch, and over a GPU if present.
#include "parallel/comm/staged_comm.h"

#include <gtest/gtest.h>

#include "kernels/base/arena.h"
#include "parallel/comm/world.h"
#include "tests/support/comm_cases.h"
#include "tests/support/comm_through_device.h"
#include "tests/support/rank_values.h"
#include "tests/support/split_device.h"

namespace trivet {
namespace {

// ---- the cases that every back end passes

// Runs the case on tensors that the host cannot touch.
void run_on_device(const CommCase& the_case, Communicator& world, Device& device) {
  const auto staged = create_staged_communicator(world, device);
  Communicator through = through_device(*staged, device);
  the_case.body(through);
  staged->barrier();  // a rank that frees its memory might block the others on the same GPU
}

class StagedComm : public testing::TestWithParam<std::tuple<int, CommCase>> {};

TEST_P(StagedComm, conforms) {
  const auto& [ranks, the_case] = GetParam();
  run_thread_ranks(ranks, [body = the_case.body](Communicator& world) {
    const auto device = create_cpu_device();
    const auto staged = create_staged_communicator(world, *device);
    body(*staged);
  });
}

TEST_P(StagedComm, conforms_out_of_the_hosts_reach) {
  const auto& [ranks, the_case] = GetParam();
  run_thread_ranks(ranks, [&the_case = the_case](Communicator& world) {
    run_on_device(the_case, world, *test::create_split_device());
  });
}

INSTANTIATE_TEST_SUITE_P(ranks, StagedComm, testing::Combine(testing::Values(1, 3), testing::ValuesIn(comm_cases())),
                         [](const auto& info) {
                           return std::string(std::get<1>(info.param).name) + "_on_" +
                                  std::to_string(std::get<0>(info.param));
                         });

TEST(StagedOnCuda, conforms) {  // ranks share the first GPU, each on its own thread
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const CommCase& the_case : comm_cases())
    run_thread_ranks(3, [&](Communicator& world) { run_on_device(the_case, world, *create_cuda_device(0)); });
}

// ---- calls on a device's own tensors, without the host waiting between them

class StagedDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("cuda") && cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  static std::unique_ptr<Device> create() {  // one per rank
    const std::string name = GetParam();
    return name == "cuda" ? create_cuda_device(0) : name == "cpu" ? create_cpu_device() : test::create_split_device();
  }
};
INSTANTIATE_TEST_SUITE_P(devices, StagedDevice, testing::Values("cpu", "split", "cuda"),
                         [](const auto& info) { return info.param; });

// Two ranks both receive before they send, on separate streams: a call must not block the caller.
TEST_P(StagedDevice, CallsOnSideStreamsDoNotHoldUpTheCaller) {
  run_thread_ranks(2, [](Communicator& world) {
    const auto device = create();
    Arena arena(*device, "staged test");
    const auto staged = create_staged_communicator(world, *device);
    const auto in = staged->twin("in", comm_of("pipeline"));
    const auto out = staged->twin("out", comm_of("pipeline"));
    const auto receiving = device->create_side_stream(StreamPriority::normal);
    const auto sending = device->create_side_stream(StreamPriority::normal);
    // Both directions in one group would deadlock, so each rank receives in the group in which the other sends.
    Communicator& mine = world.rank() == 0 ? *in : *out;
    Communicator& theirs = world.rank() == 0 ? *out : *in;
    const Tensor x = arena.allocate(DType::f32, {5000}), y = arena.allocate(DType::f32, {5000});
    // Pinned: a copy from or to pageable memory may block the caller by itself.
    const HostBuffer sent(*device, x.bytes()), received(*device, y.bytes());
    std::fill_n(static_cast<float*>(sent.data()), x.numel(), static_cast<float>(world.rank()));
    mine.recv(y, 1 - world.rank(), *receiving);
    device->copy_to_host(y, received.data(), *receiving);
    device->copy_to_device(sent.data(), x, *sending);
    theirs.send(x, 1 - world.rank(), *sending);
    receiving->synchronize();
    sending->synchronize();
    const auto* const values = static_cast<const float*>(received.data());
    EXPECT_EQ(std::count(values, values + y.numel(), static_cast<float>(1 - world.rank())), y.numel());
  });
}

TEST_P(StagedDevice, CallsFollowEachOther) {
  for (const int ranks : {2, 4})
    run_thread_ranks(ranks, [](Communicator& world) {
      // given: device tensors that hold each rank's numbers
      const auto device = create();
      Arena arena(*device, "staged test");
      const auto staged = create_staged_communicator(world, *device);
      const auto stream = device->create_side_stream(StreamPriority::normal);
      const int64_t n = 50'000, size = world.size();
      auto mine = filled<float>(n * size, world.rank(), random_value<float>);
      const Tensor full = arena.allocate(DType::f32, {n * size}), shard = arena.allocate(DType::f32, {n});
      std::vector<float> sum(mine.size()), slice(static_cast<size_t>(n)), gathered(mine.size());

      // when: calls follow each other on a stream
      device->copy_to_device(mine.data(), full, *stream);
      staged->reduce_scatter(full, shard, Reduce::sum, *stream);
      staged->all_reduce(full, Reduce::sum, *stream);
      device->copy_to_host(full, sum.data(), *stream);
      device->copy_to_host(shard, slice.data(), *stream);
      staged->all_gather(shard, full, *stream);
      device->copy_to_host(full, gathered.data(), *stream);
      stream->synchronize();

      // then: each result has the bits of a sum in rank order
      const auto expected = [&](int64_t i) { return rank_order_sum<float>(world.size(), i, random_value<float>); };
      expect_elements(sum, expected, "all_reduce");
      expect_elements(
          slice, [&](int64_t i) { return expected(world.rank() * n + i); }, "reduce_scatter");
      expect_elements(gathered, expected, "all_gather");
    });
}

TEST_P(StagedDevice, FailurePoisonsTheStreamAndTheGroup) {
  try {
    run_thread_ranks(2, [](Communicator& world) {
      const auto device = create();
      Arena arena(*device, "staged test");
      const auto staged = create_staged_communicator(world, *device);
      const auto stream = device->create_side_stream(StreamPriority::normal);
      const Tensor x = arena.allocate(DType::f32, {world.rank() == 0 ? 10 : 11});
      staged->all_reduce(x, Reduce::sum, *stream);
      EXPECT_THROW(stream->synchronize(), Error);
      EXPECT_THROW(staged->all_reduce(x, Reduce::sum, *stream), Error);
      const auto another = device->create_side_stream(StreamPriority::normal);
      EXPECT_THROW(staged->all_reduce(x, Reduce::sum, *another), Error);
      stream->synchronize();
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("of 10 fp32"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("of 11 fp32"), std::string::npos) << error.what();
  }
}

// ---- memory that calls allocate

// A CPU device that counts allocations of host memory.
class CountingDevice : public Device {
 public:
  DeviceKind kind() const override { return cpu_->kind(); }
  std::string name() const override { return cpu_->name(); }
  int64_t memory_bytes() const override { return cpu_->memory_bytes(); }
  void* allocate(int64_t bytes) override { return cpu_->allocate(bytes); }
  void deallocate(void* data, int64_t bytes) noexcept override { cpu_->deallocate(data, bytes); }
  void* allocate_host(int64_t bytes) override { return ++taken, cpu_->allocate_host(bytes); }
  void deallocate_host(void* data, int64_t bytes) noexcept override { cpu_->deallocate_host(data, bytes); }
  std::unique_ptr<Stream> create_compute_stream() override { return cpu_->create_compute_stream(); }
  std::unique_ptr<Stream> create_side_stream(StreamPriority priority) override {
    return cpu_->create_side_stream(priority);
  }
  std::unique_ptr<Event> create_event() override { return cpu_->create_event(); }
  std::unique_ptr<Gate> create_gate() override { return cpu_->create_gate(); }
  void copy_to_device(const void* host, Tensor to, Stream& stream) override { cpu_->copy_to_device(host, to, stream); }
  void copy_to_host(Tensor from, void* host, Stream& stream) override { cpu_->copy_to_host(from, host, stream); }

  int taken = 0;

 private:
  const std::unique_ptr<Device> cpu_ = create_cpu_device();
};

// The first call of each kind is as large as the largest prepared; groups split off earlier are prepared, too.
TEST(StagedMemory, PreparedCallsQueueNothingAndThenTakeNone) {
  run_thread_ranks(2, [](Communicator& world) {
    CountingDevice device;
    Arena arena(device, "staged test");
    const auto staged = create_staged_communicator(world, device);
    const auto part = staged->twin("part", comm_of("data"));
    const auto stream = device.create_side_stream(StreamPriority::normal);
    const Tensor full = arena.allocate(DType::f32, {1 << 20}), other = arena.allocate(DType::f32, {1 << 20});
    const auto use = [&](Communicator& group) {
      group.all_reduce(full, Reduce::sum, *stream);
      group.exchange(full, 1 - world.rank(), other, 1 - world.rank(), *stream);
    };
    staged->only_prepare(true);
    if (world.rank() == 0) use(*part);  // one rank only: nothing is sent
    use(*staged);
    use(*part);
    staged->only_prepare(false);
    const int before = device.taken;
    EXPECT_GT(before, 2);  // the first buffers of both groups are replaced by larger ones
    use(*staged);
    use(*part);
    stream->synchronize();
    EXPECT_EQ(device.taken, before);
  });
}

}  // namespace
}  // namespace trivet
