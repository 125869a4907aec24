// Replaces kernels/base/cuda_device.cc and this folder in a build without CUDA.
#include "base/built_with.h"
#include "kernels/gpu_monitor.h"
#include "kernels/ops.h"

namespace trivet {
namespace {

[[noreturn]] void refuse() { throw ConfigError("this build has no CUDA: configure with -DTRIVET_CUDA=ON", Lack::gpu); }

}  // namespace

std::unique_ptr<Device> create_cuda_device(int) { refuse(); }
bool built_with_cuda() { return false; }
int cuda_device_count() { return 0; }
GpuMonitor create_gpu_monitor(Device&) { return nullptr; }
std::unique_ptr<Ops> create_cuda_ops(Device&, const CudaOptions&) { refuse(); }

}  // namespace trivet
