// The NCCL back end: a rank a GPU, and a call of NCCL for each of the operations; no logic of its own.
//
// Every group has a twin on the host, threads or MPI, over which its ids are exchanged, its barrier is held and splits
// are agreed on. Groups are made eagerly and do not block inside NCCL: a call that does not come back is left when its
// time is over, and the whole world ends with the group, the rank and the call named. NCCL keeps what it holds for a
// group until the last group of the rank ends.
//
// A thread of each rank looks several times a second for NCCL's asynchronous errors and for news that another rank has
// failed (Communicator::failure). Then it breaks off everything that NCCL does on this rank, and whoever waits for the
// device or makes another call throws Error that says why: the group, the rank, NCCL's own text and, where there is a
// abort_diagnostics (a flight recorder), the call. The world is told, so the other ranks end too.
//
// Where it departs from comm.h: sums are taken in NCCL's order (two runs with the same NCCL, layout and machine agree),
// those of bf16 are rounded after each addition, and a maximum passes over NaN; ranks' calls are not compared; a send
// may wait for its receiver, and the first transfer between two ranks holds both hosts up until both have called (but
// not in a pair of comm_of("pipeline")); no span carries when a call was matched. An abort leaves the device
// poisoned (device.h): it is good for nothing but to be taken down.
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
