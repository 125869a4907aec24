// The staged back end: tensors of a device travel through host memory over ranks of another back end, threads or MPI.
// So several ranks may share one GPU, which NCCL refuses, and every layout can be run on a machine with a single one.
// It is for tests and small machines: each byte is copied twice more.
//
// A call queues on its stream: a copy to (pinned) host memory, a wait, a copy back. A worker thread of the group makes
// the call over the host's ranks in between and then opens a Gate, so neither the caller nor the stream's own threads
// ever wait for another rank. Numbers are those of the back end below: sums in rank order, the same bits.
//
// A call that fails poisons its stream, and is rethrown by the group's next call. Streams are synchronised before their
// groups are destroyed. The worker's part of a call leaves a span on the stream's row.
#pragma once

#include <memory>

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"

namespace trivet {

// The same ranks as `world`, for tensors of `device`; both outlive it. Not collective. While it lives, `world` itself
// is used through it only.
std::unique_ptr<Communicator> create_staged_communicator(Communicator& world, Device& device);

}  // namespace trivet
