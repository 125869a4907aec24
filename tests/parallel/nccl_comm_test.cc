// The NCCL back end, with a rank on a thread for each GPU of this host: skipped without a GPU, and on a single one only
// what a group of one rank does. Numbers are small integers, so that sums are exact in NCCL's order too.
#include "parallel/comm/nccl_comm.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "kernels/base/arena.h"
#include "parallel/comm/world.h"
#include "tests/support/rank_values.h"

namespace trivet {
namespace {

constexpr double kTimeout = 60;

TEST(NcclComm, EveryCallMovesWhatItShould) {
  if (!built_with_nccl() || cuda_device_count() == 0) GTEST_SKIP() << "no NCCL, or no GPU";
  run_thread_ranks(std::min(cuda_device_count(), 8), [](Communicator& world) {
    const auto device = create_cuda_device(world.rank());
    Arena arena(*device, "nccl test");
    const auto stream = device->create_side_stream(StreamPriority::high);
    const auto nccl = create_nccl_communicator(world, *device, kTimeout);
    const auto group = nccl->split(0, world.size() - world.rank(), "reversed", Category::comm_data);
    ASSERT_EQ(group->rank(), world.size() - 1 - world.rank());
    const int64_t n = 10'000, size = group->size(), rank = group->rank();
    const auto sum = [&](int64_t i) { return rank_order_sum<float>(group->size(), i, small_integer<float>); };

    // given each rank's numbers on its GPU
    auto mine = filled<float>(n * size, group->rank(), small_integer<float>);
    const Tensor full = arena.allocate(DType::f32, {n * size}), shard = arena.allocate(DType::f32, {n});
    device->copy_to_device(mine.data(), full, *stream);
    stream->synchronize();

    // when they are summed in shards, gathered, and sent round the ring
    group->reduce_scatter(full, shard, Reduce::sum, *stream);
    group->all_gather(shard, full, *stream);
    std::vector<float> gathered(mine.size()), received(static_cast<size_t>(n));
    device->copy_to_host(full, gathered.data(), *stream);
    if (size > 1) {
      // Even ranks send first: on a GPU a send may wait for its receiver.
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

TEST(NcclComm, SaysSoWhereItIsNotBuilt) {
  if (built_with_nccl()) GTEST_SKIP() << "this build has NCCL";
  run_thread_ranks(1, [](Communicator& world) {
    const auto device = create_cpu_device();
    EXPECT_THROW(create_nccl_communicator(world, *device, kTimeout), ConfigError);
  });
}

}  // namespace
}  // namespace trivet
