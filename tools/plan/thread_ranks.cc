#include "tools/plan/thread_ranks.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tools/plan/costs.h"

namespace trivet {
namespace {

bool has_link(const Links& links, Category category) {
  const auto link = links.find(kCommClasses.at(class_of(category)));
  return link != links.end() && !link->second.none();
}

class Rewriter {
 public:
  Rewriter(Tape& tape, const TapeGroups& groups, const Links& links) : tape_(tape), groups_(groups), links_(links) {}

  void rewrite() {
    const std::vector<TapeRecord> records = std::move(tape_.records);
    tape_.records.clear();
    after_.resize(tape_.streams.size());
    for (const TapeRecord& record : records) {
      if (record.kind == TapeRecord::host_wait) {
        add(TapeRecord::wait, 0, record.what, record.label);
        ++computed_;
        continue;
      }
      if (record.stream != 0) follow_compute(record.stream);
      else if (record.kind == TapeRecord::work || record.kind == TapeRecord::call || record.kind == TapeRecord::wait)
        ++computed_;
      if (record.kind == TapeRecord::call) call(record);
      else tape_.records.push_back(record);
    }
  }

 private:
  void add(TapeRecord::Kind kind, uint8_t stream, uint32_t what, uint32_t label) {
    tape_.records.push_back({.kind = kind, .stream = stream, .what = what, .label = label});
  }
  uint32_t record_event(uint8_t stream, uint32_t label) {
    add(TapeRecord::record, stream, tape_.events, label);
    return tape_.events++;
  }

  // Makes all work queued on the stream from now on wait for the compute queued so far.
  void follow_compute(uint8_t stream) {
    int64_t& after = after_[stream];
    if (after == computed_) return;
    if (event_after_ != computed_) event_ = record_event(0, 0), event_after_ = computed_;
    add(TapeRecord::wait, stream, event_, 0);
    after = computed_;
  }

  void call(const TapeRecord& record) {
    const TapeCall call = tape_.calls[record.what];
    const TapeGroups::Group& group = groups_[tape_.groups[static_cast<size_t>(call.group)]];
    const bool linked = has_link(links_, group.category);
    const auto copy = [&] {
      const auto [at, is_new] = copies_.try_emplace(record.what, static_cast<uint32_t>(tape_.works.size()));
      if (is_new)
        tape_.works.push_back({.name = call.name,
                               .category = group.category,
                               .kind = TapeWork::copy,
                               .bytes = call.bytes,
                               .wire = linked || call.kind == CommCall::transfer ? WireCost{} : call.cost});
      add(TapeRecord::work, record.stream, at->second, record.label);
    };
    if (call.kind == CommCall::transfer) {
      if (call.sends) copy();
      return add(TapeRecord::call, record.stream, record.what, record.label);
    }
    const auto [meeting, is_new] = meetings_.try_emplace(record.what, static_cast<uint32_t>(tape_.calls.size()));
    if (is_new) tape_.calls.push_back({.name = call.name, .kind = CommCall::barrier, .group = call.group});
    const auto meet = [&, number = meeting->second] { add(TapeRecord::call, record.stream, number, record.label); };
    meet();
    if (call.kind == CommCall::barrier) return;
    uint32_t brought = 0;
    if (linked) {  // the wire works during the copies
      const uint8_t wire = wire_of(record.stream);
      add(TapeRecord::wait, wire, record_event(record.stream, record.label), record.label);
      add(TapeRecord::call, wire, record.what, record.label);
      brought = record_event(wire, record.label);
    }
    copy();
    meet();
    if (!linked) return;
    meet(), meet();  // an all-reduce of the times
    add(TapeRecord::wait, record.stream, brought, record.label);
  }

  uint8_t wire_of(uint8_t stream) {
    const auto [at, is_new] = wires_.try_emplace(stream, static_cast<uint8_t>(tape_.streams.size()));
    if (is_new) {
      check(tape_.streams.size() < UINT8_MAX, "a tape has at most 255 streams");
      tape_.streams.push_back("link of " + tape_.streams[stream]);
    }
    return at->second;
  }

  Tape& tape_;
  const TapeGroups& groups_;
  const Links& links_;
  std::map<uint8_t, uint8_t> wires_;                // by stream
  std::map<uint32_t, uint32_t> copies_, meetings_;  // by call: index of its copy in works, of its barrier in calls
  int64_t computed_ = 0;                            // records so far on the compute stream that take time
  std::vector<int64_t> after_;                      // [stream]: how many of these its next record waits for
  uint32_t event_ = 0;                              // the latest event on the compute stream
  int64_t event_after_ = -1;                        // how many of these records precede event_
};

}  // namespace

void play_on_threads(Rehearsal& rehearsal, const Links& links) {
  for (Tape& tape : rehearsal.tapes) Rewriter(tape, rehearsal.groups, links).rewrite();
}

CpuWork cpu_work(const TapeWork& work) {
  // GEMMs and attention compute whole panels (kPanel, kernels/cpu/panels.h).
  constexpr int64_t kPanel = 32;
  const auto whole = [](int64_t n) { return static_cast<double>((n + kPanel - 1) / kPanel * kPanel); };
  const auto m = static_cast<double>(work.m), n = static_cast<double>(work.n), k = static_cast<double>(work.k);
  const auto size = static_cast<double>(size_of(work.dtype)), bytes = static_cast<double>(work.bytes);
  CpuWork parts;
  switch (work.kind) {
    case TapeWork::gemm:
      parts.flops = 2 * whole(work.m) * whole(work.n) * whole(work.k);
      parts.cache_bytes = size * (m * k + k * n) + 4 * m * n;
      break;
    case TapeWork::attention: {
      const double pairs = m * n - m * (m - 1) / 2, of_panels = pairs + m * (kPanel - 1) / 2;
      parts.flops = static_cast<double>(work.flops) * of_panels / pairs * whole(work.k) / k;
      parts.scores = parts.flops / (2 * whole(work.k));
      break;
    }
    case TapeWork::copy: parts.copied_bytes = bytes; break;
    case TapeWork::memory:
    case TapeWork::loss:
      if (work.category == Category::optimizer) parts.state_bytes = bytes;
      else parts.elements = bytes / size, parts.cache_bytes = bytes;
  }
  return parts;
}

int threads_of_rank(const Config& config, const System& system, int ranks) {
  return config.device.threads_per_rank > 0 ? config.device.threads_per_rank : std::max(1, system.cores / ranks);
}

double cpu_work_seconds(const System& system, const TapeWork& work, int threads) {
  const CpuWork parts = cpu_work(work);
  if (work.kind == TapeWork::copy) return parts.copied_bytes / (1e9 * system.copy_gb_per_s);  // by one thread
  double rate = 1e12 * (work.dtype == DType::bf16 ? system.bf16_tflops : system.fp32_tflops);
  if (work.kind == TapeWork::attention) rate *= work.backward ? system.attention_backward : system.attention_forward;
  const double alone = parts.flops / rate + parts.cache_bytes / (1e9 * system.cache_gb_per_s) +
                       parts.elements / (1e9 * system.vector_g_per_s) + parts.scores / (1e9 * system.score_g_per_s) +
                       parts.state_bytes / (1e9 * system.memory_gb_per_s);
  return alone / threads + 1e-6 * (system.kernel_us + (threads > 1 ? system.team_us : 0));
}

int64_t ThreadCosts::work_ns(const TapeWork& work, bool) const {
  return ns_of(cpu_work_seconds(system_, work, threads_));
}

CallCost ThreadCosts::call_cost(const TapeCall& call, const TapeGroups::Group& group) const {
  if (call.kind == CommCall::barrier || !has_link(links_, group.category)) return {.ns = ns_of(1e-6 * system_.wake_us)};
  const size_t of = class_of(group.category);
  const WireTime wire = wire_time(links_.at(kCommClasses.at(of)), call.cost);
  return {.ns = wire.busy_ns, .queue = shared_port_ ? 0 : static_cast<int>(of), .latency_ns = wire.latency_ns};
}

double ThreadCosts::core_rate(int64_t busy_threads) const {
  const double cores = system_.cores, busy = static_cast<double>(busy_threads);
  const double others = cores > 1 ? (std::min(busy, cores) - 1) / (cores - 1) : 0;
  return std::min(1.0, cores / busy) / (1 + (system_.contention - 1) * others);
}

}  // namespace trivet
