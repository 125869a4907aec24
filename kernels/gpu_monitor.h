// The state of a rank's GPU from the driver's management library (NVML): power, clocks, throttling reasons, health.
// The library is loaded on demand, as a machine with CUDA may lack it.
#pragma once

#include <cstdint>
#include <functional>

namespace trivet {

class Device;

// -1: unknown. Not every GPU reports everything.
struct GpuReading {
  int64_t energy_mj = -1;  // since the driver was loaded, millijoules
  int64_t sm_clock_mhz = -1;
  int64_t ecc_errors = -1;  // uncorrectable, since the driver was loaded
  int64_t pcie_lanes = -1;
  bool slowed_by_power = false, slowed_by_heat = false;  // clocks are reduced by a power limit or power brake; by heat
};
using GpuMonitor = std::function<GpuReading()>;

// Monitors `device`, the calling thread's GPU; empty if it is not a GPU, or NVML is missing.
GpuMonitor create_gpu_monitor(Device& device);

}  // namespace trivet
