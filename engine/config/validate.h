// Validation: does a loaded configuration make a run? check_config judges what the configuration alone tells;
// resolve() also knows the ranks and the dataset, fills in every derived value and returns the layout. Both report all
// problems at once: ranges of keys (fields.h), then how they go together (rules.h).
#pragma once

#include "engine/config/layout.h"
#include "engine/config/load.h"

namespace trivet {

void check_config(const LoadedConfig& loaded, Problems& problems);

// After it, every optional of `loaded.config` that says "derived" has a value, with that origin; what the layout says
// instead is how layers are split and the group of an interleaved schedule; what only the run can choose stays empty.
// Throws ConfigError.
Layout resolve(LoadedConfig& loaded, const RunFacts& facts);

}  // namespace trivet
