// Switches of memory and overlap, each of which needs something else to be there: a switch that cannot apply is a
// problem that says why, and is never turned off silently. Part of validate.h's judgement.
#pragma once

#include "engine/config/config.h"
#include "engine/config/problems.h"
#include "engine/config/validate.h"

namespace trivet {

// Megatron's rule for data-parallel size d: a ring's chunk, bucket / d, must stay long enough to use the bandwidth.
int64_t default_bucket_size(int64_t d);

void check_recompute(const Config& config, Problems& problems);
void check_attention(const Config& config, Problems& problems);
void check_device(const Config& config, Problems& problems);
void check_saving(const CheckpointConfig& checkpoint, Problems& problems);
void check_tensor_overlap(const Config& config, Problems& problems);
void check_pipeline_overlap(const Config& config, Problems& problems);
// Sharding and the overlap of data-parallel communication.
void check_data_parallel(const Config& config, const RunFacts& facts, Problems& problems);

}  // namespace trivet
