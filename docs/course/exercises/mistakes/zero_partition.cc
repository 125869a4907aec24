// The mistake: a parameter belongs to the rank in whose part it begins. What reaches into the next part has no owner.
#include "docs/course/exercises/zero_partition.h"

#include <algorithm>

namespace trivet::exercise {

std::vector<Shard> zero_partition(std::span<const Placed> params, int64_t bucket_length, int ranks, int rank) {
  const int64_t own = bucket_length / ranks, own_begin = own * rank;
  std::vector<Shard> shards;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto& [offset, length] = params[i];
    if (offset < own_begin || offset >= own_begin + own) continue;
    shards.push_back({i, 0, std::min(length, own_begin + own - offset)});
  }
  return shards;
}

}  // namespace trivet::exercise
