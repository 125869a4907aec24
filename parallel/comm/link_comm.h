// An emulated link under a communicator, so that there is something to hide: over shared memory a transfer is a copy,
// and that is compute.
//
// The calls move the data as before; then they complete no sooner than over a link of this latency and bandwidth.
// Who waits for that sleeps, and its core computes. Numbers never change. What a call costs, from the moment at which
// all ranks have made it, is what Trivet's exchange costs: every piece goes straight to its owner, so the pieces
// share the sender's bandwidth and pay the latency together, once (a ring would pay it n - 1 times). With n ranks:
//
//   reduce_scatter, all_gather   bytes (n-1)/n / bandwidth + latency
//   all_reduce                   2 (bytes (n-1)/n / bandwidth + latency): one after the other
//   broadcast                    bytes (n-1)   / bandwidth + latency
//   send to recv                 bytes         / bandwidth + latency, from the send on; the send itself never waits
//
// Each rank has one port out for each class of groups (tensor, pipeline, data), which all its groups of this class
// share: what is sent leaves behind what was sent before. A collective takes its own rank's port into account, not the
// queues at its peers'.
//
// A rank that fails ends a sleep of another rank no sooner than it would have ended by itself.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "parallel/comm/call_signature.h"

namespace trivet {

struct Link {
  double latency_us = 0;
  double gbps = std::numeric_limits<double>::infinity();  // 10^9 bits a second; infinite: no limit
  bool none() const { return latency_us == 0 && gbps == std::numeric_limits<double>::infinity(); }
};

// By the category of a group; other categories have none.
struct Links {
  Link tensor, pipeline, data;
  Link of(Category category) const;
};

// How long a call of `bytes` (of `full` or the tensor sent) keeps a rank's port busy, and what comes on top of it.
struct WireTime {
  int64_t busy_ns = 0;
  int64_t latency_ns = 0;
  int64_t total() const { return busy_ns + latency_ns; }
};
WireTime wire_time(const Link& link, CommCall call, int64_t bytes, int ranks);

// The groups split off the result, and off these, have links by their categories; its own calls have none, as they
// serve start-up and reports. `world` outlives it. Collective over `world`. Throws ConfigError where there are links
// and the ranks are on several hosts: arrival times are the sender's clock.
std::unique_ptr<Communicator> with_links(Communicator& world, const Links& links);

}  // namespace trivet
