// A picture of the schedules of a run: the learning rate and the batch size of each step.
#pragma once

#include <string>

#include "engine/config/validate.h"

namespace trivet {

// SVG. config: resolved.
std::string schedule_picture(const Config& config, const Layout& layout);

}  // namespace trivet
