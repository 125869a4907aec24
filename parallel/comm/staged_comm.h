// The staged back end: device tensors travel through host memory over another back end (threads or MPI). So several
// ranks can share one GPU, which NCCL does not allow, and every layout runs on a machine with a single GPU. For tests
// and small machines: it copies each byte two extra times.
//
// A call queues on its stream a copy to (pinned) host memory, a wait, and a copy back. In between, the group's worker
// thread makes the call on the host and opens a Gate: neither the caller nor the stream's threads ever wait for another
// rank. Results are bitwise those of the underlying back end.
//
// A failed call poisons its stream, and the group's next call rethrows the error. Streams must be synchronised before
// their groups are destroyed. The worker's part of a call is traced on the stream's row.
#pragma once

#include <memory>

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"

namespace trivet {

// A communicator over the ranks of `world`, for tensors on `device`; both must outlive it. Not collective. While it
// exists, nothing else may use `world`.
std::unique_ptr<Communicator> create_staged_communicator(Communicator& world, Device& device);

}  // namespace trivet
