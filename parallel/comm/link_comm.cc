#include "parallel/comm/link_comm.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <functional>
#include <mutex>
#include <sys/prctl.h>
#include <utility>
#include <vector>

#include "kernels/base/device.h"

namespace trivet {
namespace {

constexpr double kLongest = 1e15;  // ns: eleven days, and far from the end of the clock

int64_t nanoseconds(double ns) { return static_cast<int64_t>(std::min(ns, kLongest)); }

// The wake-up comes late by the thread's timer slack, 50 us by default: as much as a link's latency.
void sleep_until(int64_t ns) {
  if (ns <= now_ns()) return;
  const int slack = prctl(PR_GET_TIMERSLACK);
  prctl(PR_SET_TIMERSLACK, 1);
  const timespec time{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
  }
  if (slack > 0) prctl(PR_SET_TIMERSLACK, slack);
}

// Where a rank's traffic of one class leaves. Used by the streams of all its groups.
class Port {
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

// What all groups of one rank share.
struct RankLinks {
  Links links;
  std::array<Port, static_cast<size_t>(Category::phase) + 1> ports;  // by category
};

// Goes before each transfer, in a message of its own.
struct Stamp {
  int64_t sent_ns = 0, arrival_ns = 0;
  Tensor tensor() { return {this, DType::i64, {2}}; }
};
static_assert(sizeof(Stamp) == 2 * sizeof(int64_t));

class LinkCommunicator : public Communicator {
 public:
  // The world: it has no link itself.
  LinkCommunicator(Communicator& world, std::shared_ptr<RankLinks> rank_links)
      : inner_(world), shared_(std::move(rank_links)), category_(Category::phase), device_(create_cpu_device()) {
    attach();
  }
  LinkCommunicator(std::unique_ptr<Communicator> group, std::shared_ptr<RankLinks> rank_links, Category category)
      : owned_(std::move(group)),
        inner_(*owned_),
        shared_(std::move(rank_links)),
        category_(category),
        device_(create_cpu_device()) {
    attach();
  }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  void all_reduce(Tensor full, Reduce op, Stream& stream) override {
    collective(CommCall::all_reduce, "all_reduce", full.bytes(), stream,
               [this, full, op](Stream& s) { inner_.all_reduce(full, op, s); });
  }
  void reduce_scatter(Tensor full, Tensor shard, Reduce op, Stream& stream) override {
    check_shards("reduce_scatter", full, shard, rank(), size());
    collective(CommCall::reduce_scatter, "reduce_scatter", full.bytes(), stream,
               [this, full, shard, op](Stream& s) { inner_.reduce_scatter(full, shard, op, s); });
  }
  void all_gather(Tensor shard, Tensor full, Stream& stream) override {
    check_shards("all_gather", full, shard, rank(), size());
    collective(CommCall::all_gather, "all_gather", full.bytes(), stream,
               [this, shard, full](Stream& s) { inner_.all_gather(shard, full, s); });
  }
  void broadcast(Tensor data, int root, Stream& stream) override {
    check(root >= 0 && root < size(), "broadcast from a rank outside the group");
    collective(CommCall::broadcast, "broadcast", data.bytes(), stream,
               [this, data, root](Stream& s) { inner_.broadcast(data, root, s); });
  }

  void send(Tensor data, int to, Stream& stream) override {
    check(to >= 0 && to < size() && to != rank(), "send to a rank outside the group, or to itself");
    if (link_.none()) return inner_.send(data, to, stream);
    stream.run({"send", category_, data.bytes()}, [this, data, to](SpanClock& clock) {
      const WireTime wire = wire_time(link_, CommCall::transfer, data.bytes(), size());
      Stamp stamp{.sent_ns = now_ns()};
      stamp.arrival_ns = port().send(stamp.sent_ns, wire.busy_ns) + wire.latency_ns;
      inner_.send(stamp.tensor(), to, *inner_stream_);
      const Span inner = run_inner([&](Stream& s) { inner_.send(data, to, s); });
      clock.set_transfer_id(inner.transfer_id);
    });
  }
  void recv(Tensor data, int from, Stream& stream) override {
    check(from >= 0 && from < size() && from != rank(), "recv from a rank outside the group, or from itself");
    if (link_.none()) return inner_.recv(data, from, stream);
    stream.run({"recv", category_, data.bytes()}, [this, data, from](SpanClock& clock) {
      Stamp stamp;
      inner_.recv(stamp.tensor(), from, *inner_stream_);
      const Span inner = run_inner([&](Stream& s) { inner_.recv(data, from, s); });
      clock.set_transfer_id(inner.transfer_id);
      clock.matched(stamp.sent_ns);
      sleep_until(stamp.arrival_ns);
    });
  }

  void exchange(Tensor out, int to, Tensor in, int from, Stream& stream) override {
    if (link_.none()) inner_.exchange(out, to, in, from, stream);
    else Communicator::exchange(out, to, in, from, stream);
  }

  Memory* buffer_memory() override { return inner_.buffer_memory(); }
  std::shared_ptr<void> register_buffer(Tensor memory) override { return inner_.register_buffer(memory); }
  void barrier() override { inner_.barrier(); }
  std::unique_ptr<Communicator> split(int color, int key, std::string name, Category category) override {
    return std::make_unique<LinkCommunicator>(inner_.split(color, key, std::move(name), category), shared_, category);
  }
  void abort(const std::string& why) noexcept override { inner_.abort(why); }

 private:
  void attach() {
    link_ = shared_->links.of(category_);
    inner_stream_ = device_->create_compute_stream();
    inner_stream_->set_trace_row(&inner_row_);
  }
  Port& port() { return shared_->ports[static_cast<size_t>(category_)]; }

  // Runs call(stream) on the calling thread; the result is its span.
  template <class Call>
  Span run_inner(Call&& call) {
    call(*inner_stream_);
    inner_row_.take(inner_spans_);
    return inner_spans_.back();
  }

  template <class Call>
  void collective(CommCall kind, const char* name, int64_t bytes, Stream& stream, Call call) {
    if (link_.none() || size() == 1) return call(stream);
    stream.run({name, category_, bytes}, [this, kind, bytes, call](SpanClock& clock) {
      const Span inner = run_inner(call);
      clock.matched(inner.matched_ns);
      const WireTime wire = wire_time(link_, kind, bytes, size());
      sleep_until(port().send(inner.matched_ns, wire.busy_ns) + wire.latency_ns);
    });
  }

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  std::shared_ptr<RankLinks> shared_;
  const Category category_;
  Link link_;
  // What the inner calls run on, and the row that tells when they were matched; nobody else reads it.
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> inner_stream_;
  TraceRow inner_row_{"inner"};
  std::vector<Span> inner_spans_;
};

// Whether the ranks of `world` share a host, and so its clock: the kernel numbers its boots.
bool on_one_host(Communicator& world) {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  const auto hash = static_cast<int64_t>(std::hash<std::string>{}(boot) >> 1);
  std::array<int64_t, 2> ends{hash, -hash};
  const auto device = create_cpu_device();
  const auto stream = device->create_compute_stream();
  world.all_reduce({ends.data(), DType::i64, {2}}, Reduce::max, *stream);
  return ends[0] == -ends[1];
}

}  // namespace

Link Links::of(Category category) const {
  switch (category) {
    case Category::comm_tensor: return tensor;
    case Category::comm_pipeline: return pipeline;
    case Category::comm_data: return data;
    default: return {};
  }
}

WireTime wire_time(const Link& link, CommCall call, int64_t bytes, int ranks) {
  const double b = static_cast<double>(bytes), n = ranks, part = b * (n - 1) / n;
  const auto cost = [&](int latencies, double bytes_out) {
    return WireTime{.busy_ns = nanoseconds(8 * bytes_out / link.gbps),
                    .latency_ns = nanoseconds(latencies * 1e3 * link.latency_us)};
  };
  switch (call) {
    case CommCall::reduce_scatter:
    case CommCall::all_gather: return cost(1, part);
    case CommCall::all_reduce: return cost(2, 2 * part);
    case CommCall::broadcast: return cost(1, b * (n - 1));
    case CommCall::transfer: return cost(1, b);
    case CommCall::barrier:
    case CommCall::split: break;
  }
  return {};
}

std::unique_ptr<Communicator> with_links(Communicator& world, const Links& links) {
  const bool any = !(links.tensor.none() && links.pipeline.none() && links.data.none());
  if (any && !on_one_host(world))
    throw ConfigError(
        "comm.link_latency_us, comm.link_gbps: a link can be emulated on one host only, and the ranks are on several; "
        "leave the links of comm: out there");
  auto shared = std::make_shared<RankLinks>();
  shared->links = links;
  return std::make_unique<LinkCommunicator>(world, std::move(shared));
}

}  // namespace trivet
