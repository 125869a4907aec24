// The twin of cuda_device.cc in a build without CUDA.
#include "kernels/base/device.h"

namespace trivet {

std::unique_ptr<Device> create_cuda_device(int) {
  throw ConfigError("this build has no CUDA: configure with -DTRIVET_CUDA=ON", Lack::gpu);
}

int cuda_device_count() { return 0; }

}  // namespace trivet
