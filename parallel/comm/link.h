// Emulates link latency and bandwidth between ranks on one host, so that there is communication to overlap: over shared
// memory a transfer is a copy, which is compute.
//
// Calls move the data as before, but complete no sooner than over a link of this latency and bandwidth; a waiting
// thread sleeps, which frees its core for compute. Results never change. A call takes as long as its cost (wire_cost,
// call.h): bytes over bandwidth, plus the latencies. For a collective, this time starts when all ranks have called it;
// for a transfer, with its send, which itself never waits.
//
// All groups of one class (tensor, context, pipeline, data), or of all classes with a shared port, share one outgoing
// port per rank, first come first served. A collective's wire span is the same on every rank: from when the earliest of
// the ranks' ports is free until the last byte has arrived anywhere. A rank's failure does not cut others' sleep short.
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
  double gbps = std::numeric_limits<double>::infinity();  // 10^9 bits per second; infinity: no limit
  bool none() const { return latency_us == 0 && gbps == std::numeric_limits<double>::infinity(); }
};

// Keyed by a group's class (kCommClasses); classes without an entry have no link.
using Links = std::map<std::string_view, Link>;

// The time for which a call occupies a rank's port, and the latency on top. Their sum is a call's minimum wire time.
struct WireTime {
  int64_t busy_ns = 0;
  int64_t latency_ns = 0;
  int64_t total() const { return busy_ns + latency_ns; }
};
WireTime wire_time(const Link& link, const WireCost& cost);

// A rank's outgoing port, for one class or for all. Shared by the streams of all groups in those classes.
class LinkPort {
 public:
  // Queues traffic that is ready at ready_ns; returns the time at which its last byte leaves. Traffic that takes no
  // time, over a link of unlimited bandwidth, does not queue.
  int64_t send(int64_t ready_ns, int64_t busy_ns) {
    if (busy_ns == 0) return ready_ns;
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
  EmulatedLinks(const Links& links, bool shared_port) : links_(links), shared_port_(shared_port) {}
  Link of(Category category) const {
    const auto found = links_.find(kCommClasses.at(class_of(category)));
    return found == links_.end() ? Link{} : found->second;
  }
  // Performs the call over `link`; returns the now_ns() at which it completes, or 0 for a send. REQUIRES: !link.none().
  int64_t perform(const Link& link, HostBackEnd& back_end, const Call& call, SpanClock& clock);

 private:
  int64_t collective(const WireTime& wire, HostBackEnd& back_end, const Call& call, SpanClock& clock);
  int64_t transfer(const WireTime& wire, HostBackEnd& back_end, const Call& call, SpanClock& clock);
  LinkPort& port_of(Category category) { return ports_.at(shared_port_ ? 0 : class_of(category)); }

  const Links links_;
  const bool shared_port_;
  std::array<LinkPort, kCommClasses.size()> ports_;
};

// Sleeps until now_ns() reaches `ns`.
void sleep_until(int64_t ns);

class Communicator;
// Groups split from the result use their categories' links; the result's own calls (start-up, reports) use none.
// `shared_port`: all classes leave a rank through one port, as through a single network card. Collective over `world`.
// With links, tensors must be in host memory. Throws ConfigError if ranks are on several hosts, because arrival
// times are by the sender's clock.
std::unique_ptr<Communicator> with_links(Communicator& world, const Links& links, bool shared_port = false);
void check_one_host(Communicator& world);

// Measures a group's link as its collectives see it, for a lower bound on their time if no bandwidth is configured: the
// bus bandwidth of a large all-gather (the bytes that cross a rank's port) and the time of a tiny one, each the best of
// several. Collective over the group, whose tensors are on `device`; nothing else may run on `stream`. REQUIRES:
// more than one rank.
Link measure_link(Communicator& group, Device& device, Stream& stream);

}  // namespace trivet
