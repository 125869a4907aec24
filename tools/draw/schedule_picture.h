// A picture of a run's schedules: learning rate and batch size at each step.
#pragma once

#include <string>

#include "engine/config/validate.h"

namespace trivet {

// SVG. config: resolved.
std::string schedule_picture(const Config& config, const Layout& layout);

}  // namespace trivet
