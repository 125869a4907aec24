// Device memory that a rank needs on a system: the engine's memory plan plus the system's reserves.
#pragma once

#include <vector>

#include "engine/config/validate.h"
#include "tools/plan/system.h"

namespace trivet {

// The number of multi-rank communicators that the trainer creates on each rank of pipeline position `pp`.
int communicators_of(const Config& config, const Layout& layout, int pp);

// The memory items of the rank that needs the most.
std::vector<MemoryItem> memory_of_worst_rank(const Config& config, const Layout& layout, const System& system);

int64_t sum_of(const std::vector<MemoryItem>& items);
// The memory available to a rank: its device's, or on CPUs an equal part of the memory that `ranks` ranks share.
int64_t device_bytes(const System& system, int ranks);

}  // namespace trivet
