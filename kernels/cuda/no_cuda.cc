// The twin of this folder in a build without CUDA.
#include "kernels/ops.h"

namespace trivet {

std::unique_ptr<Ops> create_cuda_ops(Device&, const CudaOptions&) {
  throw ConfigError("this build has no CUDA: configure with -DTRIVET_CUDA=ON", Lack::gpu);
}

}  // namespace trivet
