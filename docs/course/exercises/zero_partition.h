// zero_partition: chapter 5, 25 minutes
//
// With ZeRO every data-parallel rank updates an equal part of a bucket, cut without regard to parameters: a parameter
// can begin in the part of rank 0 and end in that of rank 2. Which elements of which parameters does a rank own?
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trivet::exercise {

struct Placed {
  int64_t offset, length;  // of a parameter in the bucket; there are gaps between them
};

struct Shard {
  size_t param;   // index
  int64_t first;  // element of the parameter that the shard begins with
  int64_t count;
  bool operator==(const Shard&) const = default;
};

// The shards of `rank`, in the order of the bucket; without empty ones. REQUIRES: bucket_length % ranks == 0
std::vector<Shard> zero_partition(std::span<const Placed> params, int64_t bucket_length, int ranks, int rank);

}  // namespace trivet::exercise

// Hints
//   1. The rank's part is the interval from rank * bucket_length / ranks on. A parameter is an interval too.
//   2. Two intervals overlap from the larger start to the smaller end, unless that is empty.
//   3. `first` counts from the parameter's start, so it is where the overlap starts minus the parameter's offset.
// In the engine: parallel/data/flat_buffer.cc:owned. A checkpoint stores these shards, so that any number of ranks can
// load it.
