// Switches: the keys of the engine that trade time for memory or overlap.
#pragma once

#include <string>
#include <vector>

#include "engine/config/validate.h"

namespace trivet {

// A change to a run.
struct Switch {
  std::string name;               // "recompute nothing"
  std::vector<std::string> sets;  // "section.key=value"
};

// Each switch of a run with each other value. Some of these runs are not legal, or no different.
std::vector<Switch> switches_of(const Config& config, const Layout& layout);

}  // namespace trivet
