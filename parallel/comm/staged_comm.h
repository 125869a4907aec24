// The staged back end: tensors of a device travel through host memory over another back end, threads or MPI. So several
// ranks may share one GPU, which NCCL refuses, and every layout runs on a machine with a single one. For tests and
// small machines: it copies each byte twice more.
//
// A call queues on its stream a copy to (pinned) host memory, a wait, and a copy back. In between a worker thread of
// the group makes the call on the host and opens a Gate: neither the caller nor the stream's threads ever wait for
// another rank. Results are bitwise those of the back end below.
//
// A failed call poisons its stream and is rethrown by the group's next call. Streams are synchronised before their
// groups are destroyed. The worker's part of a call leaves a span on the stream's row.
#pragma once

#include <memory>

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"

namespace trivet {

// The same ranks as `world`, for tensors of `device`; both outlive it. Not collective. While it lives, it alone uses
// `world`.
std::unique_ptr<Communicator> create_staged_communicator(Communicator& world, Device& device);

}  // namespace trivet
