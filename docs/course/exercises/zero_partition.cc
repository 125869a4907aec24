#include "docs/course/exercises/zero_partition.h"

namespace trivet::exercise {

std::vector<Shard> zero_partition(std::span<const Placed> params, int64_t bucket_length, int ranks, int rank) {
  // Your code.
  return {};
}

}  // namespace trivet::exercise
