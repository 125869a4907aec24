// The model that a configuration describes.
#pragma once

#include "engine/config/config.h"
#include "engine/model/spec.h"

namespace trivet {

// What is to be derived yet counts as its default: an MLP of 4 h; a vocabulary that nobody has told is 0.
ModelSpec model_spec_of(const ModelConfig& config);

}  // namespace trivet
