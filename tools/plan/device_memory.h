// Device memory: a rank's memory on a system's device: the engine's own plan, and the system's share.
#pragma once

#include <vector>

#include "engine/config/validate.h"
#include "tools/plan/system.h"

namespace trivet {

// Communicators of several ranks that the trainer makes on the ranks of a pipeline stage, which are equal.
int communicators_of(const Config& config, const Layout& layout, int pp);

// Items of the rank that holds most.
std::vector<MemoryItem> memory_of_worst_rank(const Config& config, const Layout& layout, const System& system);

int64_t sum_of(const std::vector<MemoryItem>& items);
// The memory that a rank may take: its device's, or on CPUs, which `ranks` ranks share, its part.
int64_t device_bytes(const System& system, int ranks);

}  // namespace trivet
