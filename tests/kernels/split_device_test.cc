// Errors that the tests' stand-in for a GPU must detect. (device_test.cc tests its functions.)
#include "tests/support/split_device.h"

#include <cerrno>
#include <cmath>
#include <gtest/gtest.h>
#include <unistd.h>
#include <vector>

#include "kernels/base/arena.h"
#include "tests/support/tensors.h"

namespace trivet::test {
namespace {

class SplitDeviceTest : public testing::Test {
 protected:
  Tensor on_device(const Tensor& host) {
    const Tensor t = arena.allocate(host.dtype, host.shape);
    device->copy_to_device(host.data, t, *stream);
    return t;
  }
  Tensor on_host(const Tensor& t) {
    const Tensor host = tensors.poisoned(t.dtype, t.shape);
    device->copy_to_host(t, host.data, *stream);
    stream->synchronize();
    return host;
  }

  Tensors tensors;
  const std::unique_ptr<Device> device = create_split_device();
  const std::unique_ptr<Ops> ops = create_split_ops(*device, 1), cpu_ops = create_cpu_ops(1);
  Arena arena{*device, "split device test"};
  const std::unique_ptr<Stream> stream = device->create_compute_stream();
};

TEST_F(SplitDeviceTest, AnOpHasTheBitsOfTheCpus) {
  const Tensor a = tensors.uniform(DType::bf16, {33, 40}), b = tensors.uniform(DType::bf16, {40, 17});
  const Tensor bias = tensors.uniform(DType::bf16, {17}), expected = tensors.poisoned(DType::f32, {33, 17});
  const auto inline_stream = tensors.device().create_compute_stream();
  cpu_ops->run(op::Matmul{.a = a, .b = b, .c = expected, .bias = bias}, *inline_stream);

  const Tensor c = arena.allocate(DType::f32, {33, 17});
  ops->run(op::Matmul{.a = on_device(a), .b = on_device(b), .c = c, .bias = on_device(bias)}, *stream);

  EXPECT_TRUE(same_bits(on_host(c), expected));
}

TEST_F(SplitDeviceTest, TheHostCannotReadItsMemory) {
  const Tensor t = arena.allocate(DType::f32, {100});
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  // Where a program's own access would fault, a system call returns an error code.
  EXPECT_EQ(write(ends[1], t.data, 4), -1);
  EXPECT_EQ(errno, EFAULT);
  close(ends[0]), close(ends[1]);
}

TEST_F(SplitDeviceTest, NewMemoryIsPoison) {
  const HostBuffer buffer(*device, 40);
  EXPECT_TRUE(std::isnan(static_cast<float*>(buffer.data())[9]));
  EXPECT_TRUE(std::isnan(on_host(arena.allocate(DType::f32, {7})).as<float>()[6]));
  EXPECT_TRUE(std::isnan(get(on_host(arena.allocate(DType::bf16, {7})), 6)));
}

TEST_F(SplitDeviceTest, MemoryOfTheWrongSideIsNamed) {
  const Tensor here = tensors.uniform(DType::f32, {10}), there = arena.allocate(DType::f32, {10});
  const auto refuses = [](const std::function<void()>& run, const std::string& part) {
    return throws_naming(run, {part});
  };
  EXPECT_TRUE(refuses([&] { ops->run(op::ActivationBackward{.x = there, .dy = here, .dx = there}, *stream); },
                      "activation_backward: argument 2, [10] fp32"));
  EXPECT_TRUE(refuses([&] { device->copy_to_device(here.data, here, *stream); }, "copy_to_device: argument 2"));
  EXPECT_TRUE(refuses([&] { device->copy_to_host(there, there.data, *stream); }, "copy_to_host: the host's side"));
  EXPECT_TRUE(refuses(
      [&] {
        ops->run(op::Fill{Tensor{there.data, DType::f32, {11}}, 0}, *stream);
      },
      "fill: argument 1, [11]"));
  device->deallocate(device->allocate(4), 4);
  void* const gone = device->allocate(4);
  device->deallocate(gone, 4);
  EXPECT_TRUE(refuses([&] { ops->run(op::Fill{Tensor{gone, DType::f32, {1}}, 0}, *stream); }, "not inside a block"));
}

TEST_F(SplitDeviceTest, StreamsAndEventsOfAnotherDeviceAreRefused) {
  const Tensor there = arena.allocate(DType::f32, {10});
  const auto inline_stream = tensors.device().create_compute_stream();
  const auto another = create_split_device();
  const auto foreign = another->create_event(), cpu_event = tensors.device().create_event();
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::Fill{there, 0}, *inline_stream);
      },
      {"fill: a stream of another device"}));
  EXPECT_TRUE(throws_naming([&] { stream->record(*foreign); }, {"an event of another device"}));
  EXPECT_TRUE(throws_naming([&] { stream->wait(*cpu_event); }, {"an event of another device"}));
}

TEST_F(SplitDeviceTest, MemoryIsUsedAgainAndEnds) {
  const int64_t most = device->memory_bytes() / 2;
  for (int i = 0; i < 3; ++i) {
    void* const first = device->allocate(1000);
    void* const second = device->allocate(1);
    EXPECT_NE(first, second);
    device->deallocate(first, 1000);
    EXPECT_EQ(device->allocate(900), first);
    device->deallocate(first, 900);
    device->deallocate(second, 1);
  }
  EXPECT_TRUE(throws_naming([&] { device->allocate(2 * most); }, {std::to_string(2 * most)}));
}

TEST_F(SplitDeviceTest, NothingRunsBeforeSomebodyWaits) {
  const auto side = device->create_side_stream(StreamPriority::normal);
  const auto filled = device->create_event(), copied = device->create_event();
  const Tensor x = arena.allocate(DType::f32, {5});
  float source = 1, target = -1, other = -1;

  // given: a copy on one stream, after an op on another
  ops->run(op::Fill{x, 3}, *stream);
  stream->record(*filled);
  device->copy_to_device(&source, x.slice(0, 1), *stream);
  device->copy_to_host(x.slice(0, 1), &other, *stream);
  side->wait(*filled);
  device->copy_to_host(x.slice(4, 1), &target, *side);
  side->record(*copied);
  EXPECT_EQ(target, -1);  // always: a host that does not wait sees the old value

  // when: the host waits for the side stream's copy; then: only that copy's dependencies have run
  copied->synchronize();
  EXPECT_EQ(target, 3);
  EXPECT_EQ(other, -1);
  source = 2;  // its copy has not run yet, so it reads the new value
  stream->synchronize();
  EXPECT_EQ(other, 2);
}

}  // namespace
}  // namespace trivet::test
