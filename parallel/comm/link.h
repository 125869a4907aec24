// Emulates link latency and bandwidth between ranks of one host, so that there is communication to overlap: over shared
// memory a transfer is a copy, which is compute.
//
// Calls move the data as before, then complete no sooner than over a link of this latency and bandwidth; a waiting
// thread sleeps, so that its core computes. Results never change. A call takes its cost (wire_cost, call.h): the bytes
// over the bandwidth, and the latencies on top; a collective from the moment at which all ranks have made it, a
// transfer from its send on, which itself never waits.
//
// All groups of one class (tensor, pipeline, data), or with a shared port of all classes, share one outgoing port per
// rank, first come first served. A collective is on the wire from when the first of its ranks' ports is free until the
// last byte of any rank has arrived: on all ranks alike. A failing rank does not cut another rank's sleep short.
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

// The time that a call occupies a rank's port, and the latency on top. Their sum is the floor of its wire time.
struct WireTime {
  int64_t busy_ns = 0;
  int64_t latency_ns = 0;
  int64_t total() const { return busy_ns + latency_ns; }
};
WireTime wire_time(const Link& link, const WireCost& cost);

// A rank's outgoing port, for one class or for all. Used by the streams of all their groups.
class LinkPort {
 public:
  // Queues traffic that is ready at a time; returns when its last byte has left. What takes no time, over a link without
  // a limit of bandwidth, does not queue.
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
  // Makes the call over `link`; returns when it is complete on the link, in now_ns(). REQUIRES: a link.
  int64_t perform(const Link& link, HostBackEnd& back_end, const Call& call, SpanClock& clock);

 private:
  int64_t collective(const WireTime& wire, HostBackEnd& back_end, const Call& call, SpanClock& clock);
  int64_t transfer(const WireTime& wire, HostBackEnd& back_end, const Call& call, SpanClock& clock);
  LinkPort& port_of(Category category) { return ports_.at(shared_port_ ? 0 : class_of(category)); }

  const Links links_;
  const bool shared_port_;
  std::array<LinkPort, kCommClasses.size()> ports_;
};

// Sleeps until a time of now_ns().
void sleep_until(int64_t ns);

class Communicator;
// Groups split off the result have links by their categories; its own calls, which serve start-up and reports, have
// none. `shared_port`: all classes leave a rank through one port, as through one network card. Collective over `world`,
// whose tensors are in host memory if there are links. Throws ConfigError if the ranks are then on several hosts:
// arrival times are by the sender's clock.
std::unique_ptr<Communicator> with_links(Communicator& world, const Links& links, bool shared_port = false);
void check_one_host(Communicator& world);

// Measures the link under a group, as its collectives get it: a floor for them where no bandwidth is configured. The
// bandwidth (bus bandwidth: what crosses a rank's port) of a large all-gather and the time of a tiny one, each the best
// of several. Collective over the group, whose tensors `device` holds; nothing else runs on `stream`. REQUIRES: more
// than one rank.
Link measure_link(Communicator& group, Device& device, Stream& stream);

}  // namespace trivet
