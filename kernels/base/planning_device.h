// The planning device: a Device on which nothing happens. Its addresses differ, and there is no memory behind them; its
// streams drop what is queued, and its events are complete. What is built on it tells which memory it would take.
#pragma once

#include <memory>

#include "kernels/base/device.h"

namespace trivet {

std::unique_ptr<Device> create_planning_device();

}  // namespace trivet
