// Measures the link under a group, as its collectives get it: a floor for them where nobody states a bandwidth.
#pragma once

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"
#include "parallel/comm/link.h"

namespace trivet {

// The bandwidth (bus bandwidth: what crosses a rank's port) of a large all-gather and the time of a tiny one, each the
// best of several. Collective over the group, whose tensors `device` holds; nothing else runs on `stream`. REQUIRES:
// more than one rank.
Link measure_link(Communicator& group, Device& device, Stream& stream);

}  // namespace trivet
