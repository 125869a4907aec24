#include "docs/course/exercises/zero_partition.h"

#include <algorithm>

namespace trivet::exercise {

std::vector<Shard> zero_partition(std::span<const Placed> params, int64_t bucket_length, int ranks, int rank) {
  const int64_t own = bucket_length / ranks, own_begin = own * rank;
  std::vector<Shard> shards;
  for (size_t i = 0; i < params.size(); ++i) {
    const int64_t begin = std::max(params[i].offset, own_begin);
    const int64_t end = std::min(params[i].offset + params[i].length, own_begin + own);
    if (begin < end) shards.push_back({i, begin - params[i].offset, end - begin});
  }
  return shards;
}

}  // namespace trivet::exercise
