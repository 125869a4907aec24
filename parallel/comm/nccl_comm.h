// The NCCL back end: a rank a GPU, and a call of NCCL for each of the operations; no logic of its own.
//
// Every group has a twin on the host, threads or MPI, over which its ids are exchanged, its barrier is held and splits
// are agreed on. Groups are made eagerly and do not block inside NCCL: a call that does not come back is left when its
// time is over, and the whole world ends with the group, the rank and the call named. NCCL's asynchronous errors are
// looked for in every call. NCCL keeps what it holds for a group until the last group of the rank ends.
//
// Where it departs from comm.h: sums are taken in NCCL's order (two runs with the same NCCL, layout and machine agree),
// those of bf16 are rounded after each addition, and a maximum passes over NaN; ranks' calls are not compared; a send
// may wait for its receiver, and the first transfer between two ranks holds both hosts up until both have called (but
// not in a pair of Category::comm_pipeline); no span carries when a call was matched. A rank
// whose peer has failed hears of it from NCCL, from the host's world, or from a watchdog that calls abort(): a stream
// that already waits inside a collective goes on waiting until then.
#pragma once

#include <memory>

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"

namespace trivet {

bool built_with_nccl();

// The same ranks as `world`, for tensors of `device`, a CUDA device that no other rank has; both outlive it. Collective
// over `world`, which is used through it only from then on. timeout_s: of a call that sets up or enqueues. Throws Error
// where NCCL does, and ConfigError in a build without NCCL (no_nccl.cc).
std::unique_ptr<Communicator> create_nccl_communicator(Communicator& world, Device& device, double timeout_s);

}  // namespace trivet
