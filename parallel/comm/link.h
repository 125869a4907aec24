// Emulating link latency and bandwidth between ranks of one host, so that there is communication to overlap: over
// shared memory a transfer is a copy, and that is compute.
//
// The calls move the data as before; then they complete no sooner than over a link of this latency and bandwidth.
// Who waits for that sleeps, and its core computes. Numbers never change. What a call costs, from the moment at which
// all ranks have made it, is what Trivet's exchange costs: every piece goes straight to its owner, so the pieces
// share the sender's bandwidth and pay the latency together, once (a ring would pay it n - 1 times). With n ranks:
//
//   reduce_scatter, all_gather   bytes (n-1)/n / bandwidth + latency; so does an all_to_all
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

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "parallel/comm/back_end.h"

namespace trivet {

struct Link {
  double latency_us = 0;
  double gbps = std::numeric_limits<double>::infinity();  // 10^9 bits a second; infinite: no limit
  bool none() const { return latency_us == 0 && gbps == std::numeric_limits<double>::infinity(); }
};

// By the class of a group (kCommClasses); others have none.
using Links = std::map<std::string_view, Link>;

// How long a call of `bytes` (of Call::whole()) keeps a rank's port busy, and what comes on top of it.
struct WireTime {
  int64_t busy_ns = 0;
  int64_t latency_ns = 0;
  int64_t total() const { return busy_ns + latency_ns; }
};
WireTime wire_time(const Link& link, CommCall call, int64_t bytes, int ranks);

// Where a rank's traffic of one class leaves. Used by the streams of all its groups.
class LinkPort {
 public:
  // Traffic that is ready at a time leaves behind what came before; returns when its last byte has left.
  int64_t send(int64_t ready_ns, int64_t busy_ns) {
    std::lock_guard lock(mutex_);
    free_ns_ = std::max(free_ns_, ready_ns) + busy_ns;
    return free_ns_;
  }

 private:
  std::mutex mutex_;
  int64_t free_ns_ = 0;
};

// The links of one rank, which all its groups share.
class EmulatedLinks {
 public:
  explicit EmulatedLinks(const Links& links) : links_(links) {}
  Link of(Category category) const {
    const auto found = links_.find(kCommClasses.at(class_of(category)));
    return found == links_.end() ? Link{} : found->second;
  }
  // Makes the call over `link`; returns when the link lets it be over, in now_ns(). REQUIRES: a link.
  int64_t perform(const Link& link, HostBackEnd& back_end, const Call& call, SpanClock& clock);

 private:
  const Links links_;
  std::array<LinkPort, kCommClasses.size()> ports_;
};

// Sleeps to a time of now_ns(); returns at once where that is over.
void sleep_until(int64_t ns);

class Communicator;
// The groups split off the result, and off these, have links by their categories; its own calls have none, as they
// serve start-up and reports. Collective over `world`, whose tensors are in host memory where there are links. Throws
// ConfigError where the ranks are then on several hosts: arrival times are the sender's clock.
std::unique_ptr<Communicator> with_links(Communicator& world, const Links& links);
void check_one_host(Communicator& world);

}  // namespace trivet
