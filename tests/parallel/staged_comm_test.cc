// The staged back end with host memory for a device: the calls' order, copies and failures are the same on a GPU.
#include "parallel/comm/staged_comm.h"

#include <gtest/gtest.h>

#include "kernels/base/arena.h"
#include "parallel/comm/world.h"
#include "tests/support/comm_cases.h"
#include "tests/support/rank_values.h"

namespace trivet {
namespace {

std::vector<CommCase> cases() {  // but for those of traces: what is staged leaves spans of its copies too
  std::vector<CommCase> cases = collective_cases();
  for (const CommCase& more : group_cases()) cases.push_back(more);
  return cases;
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

INSTANTIATE_TEST_SUITE_P(ranks, StagedComm, testing::Combine(testing::Values(1, 3), testing::ValuesIn(cases())),
                         [](const auto& info) {
                           return std::string(std::get<1>(info.param).name) + "_on_" +
                                  std::to_string(std::get<0>(info.param));
                         });

// Two ranks that both receive before they send, on streams of their own: the caller must not wait in a call.
TEST(StagedOrder, CallsOnSideStreamsDoNotHoldUpTheCaller) {
  run_thread_ranks(2, [](Communicator& world) {
    const auto device = create_cpu_device();
    const auto staged = create_staged_communicator(world, *device);
    const auto in = staged->split(0, world.rank(), "in", Category::comm_pipeline);
    const auto out = staged->split(0, world.rank(), "out", Category::comm_pipeline);
    const auto receiving = device->create_side_stream(StreamPriority::normal);
    const auto sending = device->create_side_stream(StreamPriority::normal);
    // Both directions in one group would be a wait in a circle; so each rank receives in the group the other sends in.
    Communicator& mine = world.rank() == 0 ? *in : *out;
    Communicator& theirs = world.rank() == 0 ? *out : *in;
    std::vector<float> x(5000, static_cast<float>(world.rank())), y(5000);
    mine.recv(tensor_of(y), 1 - world.rank(), *receiving);
    theirs.send(tensor_of(x), 1 - world.rank(), *sending);
    receiving->synchronize();
    sending->synchronize();
    EXPECT_EQ(y, std::vector<float>(5000, static_cast<float>(1 - world.rank())));
  });
}

// Ranks that share the first GPU, each on a thread of its own.
TEST(StagedOnCuda, RanksShareAGpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const int ranks : {2, 4})
    run_thread_ranks(ranks, [](Communicator& world) {
      // given device tensors that hold each rank's numbers
      const auto device = create_cuda_device(0);
      Arena arena(*device, "staged test");
      const auto staged = create_staged_communicator(world, *device);
      const auto stream = device->create_side_stream(StreamPriority::normal);
      const int64_t n = 50'000, size = world.size();
      auto mine = filled<float>(n * size, world.rank(), random_value<float>);
      const Tensor full = arena.allocate(DType::f32, {n * size}), shard = arena.allocate(DType::f32, {n});
      std::vector<float> sum(mine.size()), slice(static_cast<size_t>(n)), gathered(mine.size());

      // when calls follow each other on a stream
      device->copy_to_device(mine.data(), full, *stream);
      staged->reduce_scatter(full, shard, Reduce::sum, *stream);
      staged->all_reduce(full, Reduce::sum, *stream);
      device->copy_to_host(full, sum.data(), *stream);
      device->copy_to_host(shard, slice.data(), *stream);
      staged->all_gather(shard, full, *stream);
      device->copy_to_host(full, gathered.data(), *stream);
      stream->synchronize();

      // then each has the bits of a sum in rank order
      const auto expected = [&](int64_t i) { return rank_order_sum<float>(world.size(), i, random_value<float>); };
      expect_elements(sum, expected, "all_reduce");
      expect_elements(
          slice, [&](int64_t i) { return expected(world.rank() * n + i); }, "reduce_scatter");
      expect_elements(gathered, expected, "all_gather");
    });
}

TEST(StagedFailure, PoisonsTheStreamAndTheGroup) {
  try {
    run_thread_ranks(2, [](Communicator& world) {
      const auto device = create_cpu_device();
      const auto staged = create_staged_communicator(world, *device);
      const auto stream = device->create_side_stream(StreamPriority::normal);
      std::vector<float> x(world.rank() == 0 ? 10 : 11);
      staged->all_reduce(tensor_of(x), Reduce::sum, *stream);
      EXPECT_THROW(stream->synchronize(), Error);
      EXPECT_THROW(staged->all_reduce(tensor_of(x), Reduce::sum, *stream), Error);
      stream->synchronize();
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("of 10 fp32"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("of 11 fp32"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace trivet
