// Functions of every device (the CPU, the tests' stand-in for a GPU and, if present, a GPU): copies, the order of
// streams and events, host functions and their failures, and gates.
#include <atomic>
#include <gtest/gtest.h>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/base/arena.h"
#include "tests/support/split_device.h"

namespace trivet::test {
namespace {

class DeviceTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    if (name == "cuda" && cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    device = name == "cuda"  ? create_cuda_device(0)
             : name == "cpu" ? create_cpu_device()
                             : create_split_device(name == "split_lazy");
    arena = std::make_unique<Arena>(*device, "device test");
    first = device->create_side_stream(StreamPriority::normal);
    second = device->create_side_stream(StreamPriority::high);
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Stream> first, second;
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTest, testing::Values("cpu", "split_lazy", "split_eager", "cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(DeviceTest, CopiesThroughHostBuffersInStreamOrder) {
  constexpr int64_t n = 1 << 20;
  const HostBuffer sent(*device, n * 4), received(*device, n * 4);
  auto* const from = static_cast<float*>(sent.data());
  auto* const to = static_cast<float*>(received.data());
  std::iota(from, from + n, 0.0f);
  const Tensor x = arena->allocate(DType::f32, {n});

  device->copy_to_device(from, x, *first);
  device->copy_to_host(x, to, *first);
  first->synchronize();

  EXPECT_TRUE(std::equal(from, from + n, to));
}

TEST_P(DeviceTest, AnEventOrdersTwoStreams) {
  constexpr int64_t n = 1 << 22;
  const HostBuffer sent(*device, n * 4), received(*device, n * 4);
  std::fill_n(static_cast<float*>(sent.data()), n, 3.0f);
  const Tensor x = arena->allocate(DType::f32, {n});
  const auto event = device->create_event();

  device->copy_to_device(sent.data(), x, *first);
  first->record(*event);
  second->wait(*event);
  device->copy_to_host(x, received.data(), *second);
  event->synchronize();
  second->synchronize();

  EXPECT_EQ(static_cast<float*>(received.data())[n - 1], 3.0f);
  EXPECT_TRUE(event->done());
}

TEST_P(DeviceTest, HostFunctionsRunInOrderAndTheirErrorsCome) {
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) first->run({"work"}, [&, i] { order.push_back(i); });
  first->synchronize();
  EXPECT_EQ(order.size(), 20u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));

  const auto gate = device->create_gate();
  gate->wait(*first);  // so that both functions are queued before the first runs
  first->run({"bad"}, [] { throw DataError("broken shard"); });
  first->run({"behind"}, [&] { order.push_back(-1); });
  gate->open();
  EXPECT_THROW(first->synchronize(), DataError);
  EXPECT_EQ(order.size(), 20u);
  EXPECT_THROW(first->run({"next"}, [] {}), DataError);
}

TEST_P(DeviceTest, AGateHoldsUpItsStreamUntilAnotherThreadOpensIt) {
  const auto gate = device->create_gate();
  const auto event = device->create_event();
  std::atomic<int> passed = 0;
  for (int i = 0; i < 3; ++i) {
    gate->wait(*first);
    first->run({"behind the gate"}, [&] { ++passed; });
  }
  first->record(*event);
  second->run({"beside it"}, [] {});
  second->synchronize();  // another stream is not blocked
  EXPECT_EQ(passed, 0);
  EXPECT_FALSE(event->done());

  std::thread opener([&] {
    for (int i = 0; i < 3; ++i) gate->open();
  });
  first->synchronize();
  opener.join();

  EXPECT_EQ(passed, 3);
  EXPECT_TRUE(event->done());
}

}  // namespace
}  // namespace trivet::test
