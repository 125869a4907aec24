// The NCCL back end: one GPU per rank, and one NCCL call per operation.
//
// Every group has a twin on the host (threads or MPI) for id exchange, barriers and splits. Groups are created eagerly
// and do not block inside NCCL: a call that times out ends the world with an error that names the group, the rank and
// the call. A group's NCCL resources are freed when the rank's last group ends.
//
// A thread on each rank polls for NCCL's asynchronous errors and for failures of other ranks (Communicator::failure).
// On either, it aborts NCCL on this rank and the world; waits for the device and later calls then throw an Error that
// names the group, the rank, NCCL's own text and, with a flight recorder, the call.
//
// Differences from comm.h: sums are taken in NCCL's order (two runs with the same NCCL, layout and machine agree), bf16
// is rounded after each addition, and a maximum ignores NaN; ranks' calls are not compared; a send may wait for its
// receiver, and the first transfer between two ranks blocks both hosts until both have called (except in a pair of
// comm_of("pipeline")); events tell when a call's kernel ran, which includes waiting for peers, but not when bytes
// moved: the whole span counts as wire time, which is an upper bound. An abort leaves the device poisoned (device.h):
// it can only be destroyed.
#pragma once

#include <memory>

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"

namespace trivet {

bool built_with_nccl();

// The most multiprocessors that a group of this class occupies while it communicates, even while its kernel waits for a
// peer. If all groups together could occupy more than kMostOfGpu of a GPU, all are scaled down in proportion.
constexpr int most_ctas(Category category) { return category == comm_of("pipeline") ? 8 : 16; }
constexpr double kMostOfGpu = 0.75;
int gpu_multiprocessors();  // of the current GPU; 0 in a build without NCCL

// A communicator over the ranks of `world`, for tensors on `device`, a CUDA device that no other rank uses; both must
// outlive it. Collective over `world`, which nothing else may use afterwards. timeout_s: limits each NCCL call that
// sets up or enqueues. part: the fraction of most_ctas() that each group gets, the same on all ranks. Throws Error if
// NCCL fails, and ConfigError in a build without NCCL (no_nccl.cc).
std::unique_ptr<Communicator> create_nccl_communicator(Communicator& world, Device& device, double timeout_s,
                                                       double part = 1.0);

}  // namespace trivet
