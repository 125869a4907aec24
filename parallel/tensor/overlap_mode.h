// The kinds of overlap in tensor parallelism: overlap.h has what they are.
#pragma once

namespace trivet {

enum class TensorOverlap { none, bulk, ring, pipeline };

}  // namespace trivet
