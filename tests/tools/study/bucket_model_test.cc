#include "tools/study/bucket_model.h"

#include <gtest/gtest.h>

#include "tests/engine/config/config_text.h"

namespace trivet {
namespace {

// Two ranks, data-parallel; 8 Gbit/s is 10^9 bytes a second.
const std::vector<std::string> kSets = {"parallel.data_parallel_sharding_strategy=optim", "comm.data_link_gbps=8",
                                        "comm.data_link_latency_us=100",
                                        "model.untie_embeddings_and_output_weights=true"};

constexpr int64_t kAll = 1'000'000'000;  // elements: one bucket

std::optional<double> exposed(int64_t bucket_size, double compute_seconds, std::vector<std::string> more = {},
                              int ranks = 2) {
  std::vector<std::string> sets = kSets;
  sets.insert(sets.end(), more.begin(), more.end());
  LoadedConfig loaded = load_good(sets);
  const Layout layout = resolve(loaded, {.world_size = ranks});
  return modelled_exposed(loaded.config, layout, bucket_size, compute_seconds);
}

const std::vector<std::string> kOverlap = {"overlap.overlap_grad_reduce=true", "overlap.overlap_param_gather=true"};

TEST(BucketModel, WithoutOverlapEverythingIsExposed) {
  // given: n fp32 gradients and fp32 weights, of which a rank sends half, over 10^9 bytes a second
  const double bytes_only = *exposed(kAll, 1, {"comm.data_link_latency_us=0"});
  const double more = *exposed(kAll, 1, {"comm.data_link_latency_us=0", "model.hidden_size=16"});
  EXPECT_GT(more, bytes_only);

  // then: a latency a call, and two all-reduces of two latencies each
  EXPECT_NEAR(*exposed(kAll, 1), bytes_only + 2e-4 + 4e-4, 1e-8);
  EXPECT_NEAR(*exposed(kAll, 1, {"comm.data_link_gbps=4"}), 2 * bytes_only + 2e-4 + 4e-4, 1e-8);
  EXPECT_GT(*exposed(1, 1), *exposed(kAll, 1) + 20e-4) << "many buckets pay the latency many times";
}

TEST(BucketModel, WithoutShardingThereIsAnAllReduceAndNoGather) {
  EXPECT_NEAR(*exposed(kAll, 1, {"parallel.data_parallel_sharding_strategy=no_shard"}), *exposed(kAll, 1) - 2e-4, 1e-8)
      << "the same bytes, one all-reduce of two latencies and one of the loss";
}

TEST(BucketModel, WithOverlapTheCallsOfOneBucketStayExposed) {
  // given: a step that is long beside its communication
  std::vector<std::string> slow = kOverlap;
  slow.emplace_back("comm.data_link_gbps=0.01");
  const double one = *exposed(kAll, 1e3, slow), small = *exposed(1, 1e3, slow);

  // then: one bucket is ready when the backward pass ends, and is wanted when the forward pass begins
  EXPECT_NEAR(one, *exposed(kAll, 1e3, {"comm.data_link_gbps=0.01"}), 1e-8);
  EXPECT_LT(small, one);
  EXPECT_GT(small, 2e-4 + 4e-4) << "the last reduction and the first gather";
}

TEST(BucketModel, AShorterStepHidesLess) {
  const double plain = *exposed(100, 1);
  double last = plain;
  for (const double compute : {1e-9, 1e-4, 1e-3, 1e-2, 1.}) {
    const double overlapped = *exposed(100, compute, kOverlap);
    EXPECT_LE(overlapped, last + 1e-9) << compute;
    last = overlapped;
  }
  // One call after the other, with or without compute beside it.
  std::vector<std::string> one_stream = kOverlap;
  one_stream.push_back("overlap.collectives_in_flight=1");
  EXPECT_NEAR(*exposed(100, 1e-9, one_stream), plain, 1e-8);
}

TEST(BucketModel, IsSilentWhereItDoesNotApply) {
  EXPECT_FALSE(exposed(100, 1, {}, 1));
  EXPECT_FALSE(exposed(100, 1, {"comm.data_link_gbps=0", "comm.data_link_latency_us=0"}));
  EXPECT_FALSE(exposed(100, 1, {"parallel.pipeline_model_parallel_size=2"}, 4));
  EXPECT_FALSE(exposed(100, 1, {"parallel.tensor_model_parallel_size=2"}, 4));
  EXPECT_FALSE(exposed(100, 1, {"parallel.data_parallel_sharding_strategy=optim_grads"}));
}

}  // namespace
}  // namespace trivet
