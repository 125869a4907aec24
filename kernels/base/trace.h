// Trace: what every stream did, and when. A span is one op, collective or phase; the step line's exposed
// communication and the Perfetto file both come from it, so both are measured, not derived.
//
// A TraceRow belongs to one stream and is written by the thread that runs that stream; TraceRow::take empties it
// between two steps. Times are CLOCK_MONOTONIC nanoseconds, comparable between the processes on one host.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/intervals.h"

namespace trivet {

// The classes of communication that traces, metrics and emulated links distinguish, named after the mesh's groups.
// Their order is that in which a step's time is counted (engine/metrics/step_stats.h).
constexpr std::array<std::string_view, 4> kCommClasses = {"tensor", "context", "pipeline", "data"};

// compute: arithmetic. host: data loading and the like. phase: a name laid over other spans (forward, backward,
// optimizer); never counted as work of its own. first_comm + k: a collective or transfer of class k.
enum class Category : uint8_t { compute, optimizer, host, phase, first_comm };
constexpr bool is_comm(Category c) { return c >= Category::first_comm; }
// Index in kCommClasses. REQUIRES: is_comm.
constexpr size_t class_of(Category c) { return static_cast<size_t>(c) - static_cast<size_t>(Category::first_comm); }
// The category of the communication class with this name, one of kCommClasses.
constexpr Category comm_of(std::string_view class_name) {
  size_t k = 0;
  while (kCommClasses.at(k) != class_name) ++k;
  return static_cast<Category>(static_cast<size_t>(Category::first_comm) + k);
}

inline std::string name_of(Category category) {  // "comm.tensor"
  constexpr std::array kNames = {"compute", "optimizer", "host", "phase"};
  return is_comm(category) ? "comm." + std::string(kCommClasses.at(class_of(category)))
                           : kNames.at(static_cast<size_t>(category));
}

// A communication's load on its rank's port.
struct WireCost {
  int64_t bytes = 0;    // 0: none. A buffered send's bytes are reported by its receive
  int hops = 0;         // latencies in sequence
  bool queues = false;  // waits for earlier collectives; a transfer does not
  bool operator==(const WireCost&) const = default;
};

// The purpose of a stream's current work.
struct SpanLabel {
  int microbatch = -1;                  // -1: none; likewise below
  int chunk = -1;                       // index among the pipeline rank's model chunks
  int first_unit = -1, last_unit = -1;  // indices in the rank's ParamList::units
  int bucket = -1;                      // index in FlatBuffer::buckets, of gradients or weights
  int64_t hand_over = 0;                // Stream::hand_over that made its input ready; counted per rank, from 1
  bool operator==(const SpanLabel&) const = default;
};

struct SpanInfo {
  const char* name = "";  // a string literal
  Category category = Category::compute;
  int64_t bytes = 0;     // of the tensor moved; 0 if not applicable
  int ranks = 0;         // in its group
  WireCost cost = {};    // of a communication
  SpanLabel label = {};  // the stream's, when the work was queued
};

// A communication is on the wire from when its first byte may move until its last has moved, as the transport reports:
// [wire_start, wire_end). The interval is the same on all ranks of a call if they share a clock, and need not lie
// within the span: received data may have been sent earlier. Before its wire time, a span waits for peers; after it, or
// if it has none, it copies.
struct Span {
  SpanInfo info;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t wire_start_ns = 0, wire_end_ns = 0;  // both 0: unknown, or no communication; equal: none (a buffered send)
  uint64_t transfer_id = 0;  // of a send and its recv: the same number at both ends, and nowhere else; 0: none

  // For a communication: time that the transport cannot classify counts as wire.
  Interval wire() const {
    return wire_start_ns == 0 ? Interval{start_ns, end_ns} : Interval{wire_start_ns, wire_end_ns};
  }
};

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The span capacity that a rank's rows share between two calls of take(), and whether to measure spans for which a
// device must record events.
struct SpanRoom {
  std::atomic<bool> measures = true;
  std::atomic<int64_t> left = std::numeric_limits<int64_t>::max(), lost = 0;
};

class TraceRow {
 public:
  explicit TraceRow(std::string name, SpanRoom* room = nullptr) : name_(std::move(name)), room_(room) {}
  const std::string& name() const { return name_; }
  bool measures() const { return !room_ || room_->measures.load(std::memory_order_relaxed); }
  // If there is no room, the span is dropped and counted: a full trace neither ends a run nor makes a destructor throw.
  void add(const Span& span) noexcept {
    std::lock_guard lock(mutex_);
    if (!room_ || room_->left.fetch_sub(1) > 0) try {
        return spans_.push_back(span);
      } catch (const std::bad_alloc&) {
      }
    if (!room_) return;
    ++room_->left;
    ++room_->lost;
  }
  // For spans that are not reported as they happen: take() calls `source`, on the thread that feeds the stream.
  void set_source(std::function<void()> source) { source_ = std::move(source); }
  // Moves the spans recorded so far into `out`, which is overwritten; keeps the capacity of both.
  void take(std::vector<Span>& out) {
    if (source_) source_();
    std::lock_guard lock(mutex_);
    out.clear();
    out.swap(spans_);
    if (room_) room_->left += static_cast<int64_t>(out.size());
  }

 private:
  std::string name_;
  SpanRoom* room_;  // null: no limit
  std::function<void()> source_;
  std::mutex mutex_;
  std::vector<Span> spans_;
};

// HostRange: a range of a host thread for profilers (NVTX: Nsight Systems and others), named after the trace's span. On
// a GPU it covers the time in which work is queued; the profiler shows next to it when the work ran. Without a profiler
// attached, a range costs two pointer tests; in a build without NVTX (no_nvtx.cc), two empty calls.
// RAII. Ranges of a thread nest. name: a string literal.
class HostRange {
 public:
  explicit HostRange(const char* name);
  HostRange(const char* name, int64_t number);  // shown after the name
  ~HostRange();
  HostRange(const HostRange&) = delete;
  HostRange& operator=(const HostRange&) = delete;
};

// Lets work report on its own span while it runs.
class SpanClock {
 public:
  // When the first byte may move, and when the last has moved; 0: when the span ends.
  void set_wire(int64_t start_ns, int64_t end_ns = 0) { wire_start_ns_ = start_ns, wire_end_ns_ = end_ns; }
  void set_no_wire() { wire_start_ns_ = wire_end_ns_ = kNoWire; }
  int64_t wire_start_ns() const { return wire_start_ns_; }  // 0: not set
  void set_transfer_id(uint64_t id) { transfer_id_ = id; }

 private:
  friend class ScopedSpan;
  static constexpr int64_t kNoWire = -1;
  int64_t wire_start_ns_ = 0, wire_end_ns_ = 0;
  uint64_t transfer_id_ = 0;
};

// RAII: the span of a scope, and its range in a profiler. With a null row, the span itself costs one test.
class ScopedSpan {
 public:
  ScopedSpan(TraceRow* row, SpanInfo info) : range_(info.name), row_(row), info_(info), start_(row ? now_ns() : 0) {}
  ~ScopedSpan() {
    if (!row_) return;
    Span span{info_, start_, now_ns(), clock_.wire_start_ns_, clock_.wire_end_ns_, clock_.transfer_id_};
    if (span.wire_start_ns == SpanClock::kNoWire) span.wire_start_ns = span.wire_end_ns = span.start_ns;
    else if (span.wire_start_ns != 0 && span.wire_end_ns == 0) span.wire_end_ns = span.end_ns;
    row_->add(span);
  }
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;
  SpanClock& clock() { return clock_; }

 private:
  HostRange range_;
  TraceRow* row_;
  SpanInfo info_;
  int64_t start_;
  SpanClock clock_;
};

// All rows of one rank.
class Trace {
 public:
  // A new row; valid as long as the Trace. Called while the rank is built.
  TraceRow* add_row(std::string name) { return &rows_.emplace_back(std::move(name), &room_); }
  std::deque<TraceRow>& rows() { return rows_; }
  // The maximum number of spans held. Call it before the first span; without it there is no limit.
  void set_room(int64_t spans) { room_.left = spans; }
  // false: a GPU's streams record no events for spans and phases. Initially true; changed only outside of both.
  void set_measures(bool on) { room_.measures = on; }
  int64_t take_lost() { return room_.lost.exchange(0); }

 private:
  SpanRoom room_;
  std::deque<TraceRow> rows_;
};

}  // namespace trivet
