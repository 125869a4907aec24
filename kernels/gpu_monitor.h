// The state of a rank's GPU from the driver's management library (NVML): power, clocks, throttling reasons, health.
// Loaded on demand, as a machine may have CUDA without it.
#pragma once

#include <cstdint>
#include <functional>

namespace trivet {

class Device;

// -1 is unknown: not every GPU knows all of it.
struct GpuReading {
  int64_t energy_mj = -1;  // since the driver was loaded, millijoules
  int64_t sm_clock_mhz = -1;
  int64_t ecc_errors = -1;  // that could not be corrected, since the driver was loaded
  int64_t pcie_lanes = -1;
  bool slowed_by_power = false, slowed_by_heat = false;  // clocks are held down by a power limit or a brake; by heat
};
using GpuMonitor = std::function<GpuReading()>;

// For the GPU `device`, which is the calling thread's; empty if it is no GPU, or there is no NVML.
GpuMonitor create_gpu_monitor(Device& device);

}  // namespace trivet
