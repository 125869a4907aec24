// The arithmetic of all_reduce and reduce_scatter: the same in every CPU back end, so that they agree bitwise.
#pragma once

#include <span>

#include "parallel/comm/comm.h"

namespace trivet {

// Each of `outputs`[i] = (((inputs[0][i] + inputs[1][i]) + inputs[2][i]) + …), or their maximum, for i < count.
// inputs[r] is rank r's. fp32 adds in fp32; bf16 adds in fp32 and rounds once; int64 is exact, modulo 2^64. The
// maximum of anything and a NaN is a NaN. An output may be one of the inputs; else they do not overlap.
// Throws Error for other element types. Any thread may call it.
void reduce_in_rank_order(Reduce op, DType dtype, std::span<const void* const> inputs, std::span<void* const> outputs,
                          int64_t count);

}  // namespace trivet
