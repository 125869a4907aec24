// GpuMonitor: what the driver's management library (NVML) says of a rank's GPU: power, clocks, what slows it down, its
// health. Loaded when it is asked for, as a machine may have CUDA without it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace trivet {

class Device;

// -1 is unknown: not every GPU knows all of it.
struct GpuReading {
  int64_t energy_mj = -1;  // since the driver was loaded, millijoules
  int64_t sm_clock_mhz = -1, max_sm_clock_mhz = -1;
  int64_t slowed_by_power = -1;  // 1: clocks are held down by a power limit or a brake; 0: they are not
  int64_t slowed_by_heat = -1;
  int64_t ecc_errors = -1;                       // that could not be corrected, since the driver was loaded
  int64_t pcie_width = -1, max_pcie_width = -1;  // lanes
};

class GpuMonitor {
 public:
  virtual ~GpuMonitor() = default;
  virtual GpuReading read() = 0;
  virtual std::string driver() const = 0;  // version
};

// Of the GPU `device`, which is the calling thread's; null: it is none, or there is no NVML for it.
std::unique_ptr<GpuMonitor> create_gpu_monitor(Device& device);

}  // namespace trivet
