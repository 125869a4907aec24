// Explanation of a resolved configuration in aligned text: each value and where it came from, and a summary of the run.
// `trivet config` prints all of it; `trivet train` opens with the second part.
#pragma once

#include <string>
#include <vector>

#include "base/text.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"

namespace trivet {

// Key, value and origin of every field.
TextBlock describe_values(const LoadedConfig& loaded);

// Model, parameters, layout, batch and FLOPs, and memory of each pipeline rank, [p].
std::vector<TextBlock> describe_run(const Config& config, const Layout& layout, const std::vector<MemoryPlan>& memory);

// Every key with its valid values, its default and its meaning.
TextBlock describe_keys();

}  // namespace trivet
