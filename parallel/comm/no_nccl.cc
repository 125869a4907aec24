// The twin of nccl_comm.cc in a build without NCCL.
#include "parallel/comm/nccl_comm.h"

namespace trivet {

bool built_with_nccl() { return false; }

std::unique_ptr<Communicator> create_nccl_communicator(Communicator&, Device&, double) {
  throw ConfigError(
      "comm.backend: nccl is not in this build; install NCCL beside CUDA and configure with -DTRIVET_NCCL=ON, or let "
      "ranks share a GPU with comm.backend: staged");
}

}  // namespace trivet
