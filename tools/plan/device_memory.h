// Device memory: what a rank needs on a system's device: the engine's own plan plus the system's reserves.
#pragma once

#include <vector>

#include "engine/config/validate.h"
#include "tools/plan/system.h"

namespace trivet {

// The number of communicators with several ranks that the trainer creates on each rank of pipeline position `pp`.
int communicators_of(const Config& config, const Layout& layout, int pp);

// The items of the rank that needs most memory.
std::vector<MemoryItem> memory_of_worst_rank(const Config& config, const Layout& layout, const System& system);

int64_t sum_of(const std::vector<MemoryItem>& items);
// The memory available to a rank: its device's, or on CPUs, which `ranks` ranks share, an equal part.
int64_t device_bytes(const System& system, int ranks);

}  // namespace trivet
