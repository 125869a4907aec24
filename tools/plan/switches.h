// Switches: engine keys that trade time against memory, or control overlap.
#pragma once

#include <string>
#include <vector>

#include "engine/config/validate.h"

namespace trivet {

// A change to a run's configuration.
struct Switch {
  std::string name;               // "recompute nothing"
  std::vector<std::string> sets;  // "section.key=value"
};

// Changes of a run's switches to other values, one at a time. Some of the resulting runs are illegal or no different.
std::vector<Switch> switches_of(const Config& config, const Layout& layout);

}  // namespace trivet
