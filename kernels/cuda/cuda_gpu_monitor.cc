// A GpuMonitor on top of NVML. The few functions in use are declared here, because their types are plain and NVML's
// header is not part of every CUDA installation.
#include <algorithm>
#include <cuda_runtime_api.h>
#include <memory>
#include <string>

#include "kernels/base/cuda_device.h"
#include "kernels/cuda/shared_library.h"
#include "kernels/gpu_monitor.h"

namespace trivet {
namespace {

using Handle = struct nvmlDevice_st*;
using Number = unsigned int;
using Large = unsigned long long;

constexpr int kSuccess = 0, kSmClock = 1, kUncorrected = 1, kVolatile = 0;
// Reasons for reduced clocks: bits of nvmlClocksThrottleReasons.
constexpr int64_t kPower = 0x4 | 0x80, kHeat = 0x8 | 0x20 | 0x40;

class Nvml {
 public:
  explicit Nvml(const std::string& bus_id) : library_("NVML", {"libnvidia-ml.so.1"}) {
    int (*const init)() = library_["nvmlInit_v2"];
    int (*const find)(const char*, Handle*) = library_["nvmlDeviceGetHandleByPciBusId_v2"];
    if (init() != kSuccess || find(bus_id.c_str(), &device_) != kSuccess) throw ConfigError("NVML knows no " + bus_id);
  }

  GpuReading read() const {
    const int64_t reasons = std::max<int64_t>(0, get<Large>("nvmlDeviceGetCurrentClocksThrottleReasons"));
    return {.energy_mj = get<Large>("nvmlDeviceGetTotalEnergyConsumption"),
            .sm_clock_mhz = get<Number>("nvmlDeviceGetClockInfo", kSmClock),
            .ecc_errors = get<Large>("nvmlDeviceGetTotalEccErrors", kUncorrected, kVolatile),
            .pcie_lanes = get<Number>("nvmlDeviceGetCurrPcieLinkWidth"),
            .slowed_by_power = (reasons & kPower) != 0,
            .slowed_by_heat = (reasons & kHeat) != 0};
  }

 private:
  // Reads a value of the device with this NVML function; -1 if that fails.
  template <class T, class... Kind>
  int64_t get(const char* function, Kind... kind) const {
    int (*const ask)(Handle, Kind..., T*) = library_[function];
    T value = 0;
    return ask(device_, kind..., &value) == kSuccess ? static_cast<int64_t>(value) : -1;
  }

  SharedLibrary library_;
  Handle device_ = nullptr;
};

}  // namespace

GpuMonitor create_gpu_monitor(Device& device) {
  if (device.kind() != DeviceKind::cuda) return nullptr;
  int index = 0;
  char bus_id[32] = "";
  try {
    check_cuda(cudaGetDevice(&index), "cudaGetDevice");
    check_cuda(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index), "cudaDeviceGetPCIBusId");
    return [nvml = std::make_shared<Nvml>(bus_id)] { return nvml->read(); };
  } catch (const Error&) {  // failed monitoring must not end the run
    return nullptr;
  }
}

}  // namespace trivet
