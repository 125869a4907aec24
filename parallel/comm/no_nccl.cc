// Replaces nccl_comm.cc in a build without NCCL.
#include "parallel/comm/nccl_comm.h"

namespace trivet {

bool built_with_nccl() { return false; }
int gpu_multiprocessors() { return 0; }

std::unique_ptr<Communicator> create_nccl_communicator(Communicator&, Device&, double, double) {
  throw ConfigError("NCCL is not in this build; install it with CUDA and configure with -DTRIVET_NCCL=ON", Lack::nccl);
}

}  // namespace trivet
