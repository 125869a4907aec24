// The kinds of overlap in tensor parallelism: overlap.h defines them.
#pragma once

namespace trivet {

enum class TensorOverlap { none, bulk, ring, pipeline };

}  // namespace trivet
