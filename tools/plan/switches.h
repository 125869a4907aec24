// Switches: engine keys that trade time for memory, or control overlap.
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

// Changes to a run's switches, one at a time. Some of them result in an illegal run, or change nothing.
std::vector<Switch> switches_of(const Config& config, const Layout& layout);

}  // namespace trivet
