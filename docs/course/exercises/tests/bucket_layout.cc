#include "docs/course/exercises/bucket_layout.h"

#include "docs/course/exercises/support/testing.h"
#include "parallel/data/flat_buffer.h"

namespace trivet::exercise {
namespace {

// The engine's layout of the same parameters.
BucketLayout of_engine(std::span<const int64_t> lengths, int64_t bucket_size, int ranks) {
  ParamList params;
  params.begin_unit(0);
  for (size_t i = lengths.size(); i-- > 0;)  // declared in the order of the forward pass
    params.declare({.name = std::to_string(i), .global_shape = {lengths[i]}});
  const auto device = create_cpu_device();
  Arena weights(*device, "weights"), gradients(*device, "gradients");
  const FlatBuffer flat(params, {.bucket_size = bucket_size, .sharding = Sharding::optim, .ranks = ranks}, weights,
                        gradients);
  BucketLayout layout;
  for (const FlatSegment& segment : flat.segments) layout.offsets.push_back(segment.offset);
  for (const FlatBucket& bucket : flat.buckets) layout.ends.push_back(bucket.end);
  return layout;
}

TEST(bucket_layout, is_the_engines) {
  const std::vector<int64_t> lengths{100, 768, 5000, 768, 64, 65, 3000, 1, 129};
  for (const int ranks : {1, 2, 3, 8, 6})
    for (const int64_t bucket_size : {1, 1000, 4096, 100000}) {
      const BucketLayout found = bucket_layout(lengths, bucket_size, ranks),
                         expected = of_engine(lengths, bucket_size, ranks);
      const std::string what = std::to_string(ranks) + " ranks, bucket_size " + std::to_string(bucket_size);
      expect_near(found.offsets, expected.offsets, 0, what + ": offsets");
      expect_near(found.ends, expected.ends, 0, what + ": ends of buckets");
      for (const int64_t end : found.ends)
        ASSERT_EQ(end % ranks, 0) << what << ": a bucket that ends at " << end << " cannot be shared equally";
    }
}

}  // namespace
}  // namespace trivet::exercise
