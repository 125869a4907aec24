// Initial weights as a pure function of (seed, parameter name, global index): the same for every layout.
//
// Element i of a parameter's global shape is std * normal(i). Normals come in fours from philox4x32(i / 4, 0, key) by
// the Box-Muller transform; the key hashes the seed and the name. Padding rows (of the vocabulary) are zero and come
// last, so padding changes no index.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/base/device.h"
#include "parallel/param.h"

namespace trivet {

float initial_normal(uint64_t key, int64_t i);
uint64_t initial_key(uint64_t seed, std::string_view name);

// Writes the weight of a parameter, using `threads` host threads; returns when it is on the device.
void initialize_weight(const Param& param, uint64_t seed, int threads, Device& device, Stream& stream);

}  // namespace trivet
