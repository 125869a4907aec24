// Initial weights as a pure function of (seed, parameter name, global index): the same for every layout.
//
// Element i of a parameter, counted in its whole global shape, is std * normal(i), where normals come in fours from
// philox4x32(i / 4, 0, key) by Box and Muller's method and key is a hash of the seed and the name. Rows of padding
// (vocabulary) are zero and lie behind all others, so padding moves no index.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/base/device.h"
#include "parallel/param.h"

namespace trivet {

// The normal deviate number i of a parameter.
float initial_normal(uint64_t key, int64_t i);
uint64_t initial_key(uint64_t seed, std::string_view name);

// Writes the weight of a parameter, with `threads` host threads; returns when it is on the device.
void initialize_weight(const Param& param, uint64_t seed, int threads, Device& device, Stream& stream);

}  // namespace trivet
