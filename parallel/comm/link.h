// Emulates link latency and bandwidth between ranks of one host, so that there is communication to overlap: over shared
// memory a transfer is a copy, which is compute.
//
// Calls move the data as before, then complete no sooner than over a link of this latency and bandwidth; a waiting
// thread sleeps, so that its core computes. Results never change. The cost of a call, from the moment at which all
// ranks have made it, is that of Trivet's own algorithm: every shard goes straight to its owner, so the shards share
// the sender's bandwidth and pay the latency once (a ring would pay it n - 1 times). With n ranks:
//
//   reduce_scatter, all_gather   bytes (n-1)/n / bandwidth + latency; so does an all_to_all
//   all_reduce                   2 (bytes (n-1)/n / bandwidth + latency): one after the other
//   broadcast                    bytes (n-1)   / bandwidth + latency
//   send to recv                 bytes         / bandwidth + latency, from the send on; the send itself never waits
//
// All groups of one class (tensor, pipeline, data) share one outgoing port per rank, first come first served. A
// collective waits for its own rank's port, not for its peers'. A failing rank does not cut another rank's sleep short.
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

// By the class of a group (kCommClasses); other classes have no link.
using Links = std::map<std::string_view, Link>;

// How long a call of `bytes` (of Call::whole()) keeps a rank's port busy, and the latency on top.
struct WireTime {
  int64_t busy_ns = 0;
  int64_t latency_ns = 0;
  int64_t total() const { return busy_ns + latency_ns; }
};
WireTime wire_time(const Link& link, CommCall call, int64_t bytes, int ranks);

// A rank's outgoing port for one class. Used by the streams of all its groups.
class LinkPort {
 public:
  // Queues traffic that is ready at a time; returns when its last byte has left.
  int64_t send(int64_t ready_ns, int64_t busy_ns) {
    std::lock_guard lock(mutex_);
    free_ns_ = std::max(free_ns_, ready_ns) + busy_ns;
    return free_ns_;
  }

 private:
  std::mutex mutex_;
  int64_t free_ns_ = 0;
};

// The links of one rank.
class EmulatedLinks {
 public:
  explicit EmulatedLinks(const Links& links) : links_(links) {}
  Link of(Category category) const {
    const auto found = links_.find(kCommClasses.at(class_of(category)));
    return found == links_.end() ? Link{} : found->second;
  }
  // Makes the call over `link`; returns when it is complete on the link, in now_ns(). REQUIRES: a link.
  int64_t perform(const Link& link, HostBackEnd& back_end, const Call& call, SpanClock& clock);

 private:
  const Links links_;
  std::array<LinkPort, kCommClasses.size()> ports_;
};

// Sleeps until a time of now_ns().
void sleep_until(int64_t ns);

class Communicator;
// Groups split off the result have links by their categories; its own calls, which serve start-up and reports, have
// none. Collective over `world`, whose tensors are in host memory if there are links. Throws ConfigError where the
// ranks are then on several hosts: arrival times are by the sender's clock.
std::unique_ptr<Communicator> with_links(Communicator& world, const Links& links);
void check_one_host(Communicator& world);

}  // namespace trivet
