// Stream and Event: the only concurrency vocabulary of the project.
//
// A Stream is a queue of work that runs in order; two streams run concurrently unless an Event orders them. On a GPU a
// stream is a cudaStream_t; on a CPU it is a worker thread, or `inline`: the caller runs the work itself (the compute
// stream's default). So an overlap bug shows on a laptop: a missing wait gives wrong numbers there, and a
// ThreadSanitizer report.
//
// A stream is fed by one host thread at a time. Work that throws poisons its stream: later work is dropped, and the
// error is rethrown by synchronize(), by the next run() and by waits for a later event.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/trace.h"

namespace trivet {

// A point in a stream. Waiting for an event means waiting for its latest record() at the time of the wait; an event
// that was never recorded is complete.
class Event {
 public:
  virtual ~Event() = default;
  virtual void synchronize() = 0;  // blocks the host thread
  virtual bool done() = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  virtual void record(Event& event) = 0;  // the event completes with the work queued so far
  virtual void wait(Event& event) = 0;    // work queued from now on starts after the event
  virtual void synchronize() = 0;         // blocks the host thread until the queue is empty

  // Queues a host function in stream order, under a span: f(), or f(SpanClock&) to report on the span. On a GPU it must
  // not call CUDA.
  template <class F>
  void run(const SpanInfo& info, F&& f) {
    if (inline_) call(labelled(info), f);
    else enqueue([this, info = labelled(info), f = std::forward<F>(f)]() mutable { call(info, f); });
  }

  // A phase is a span over the work that is queued between its begin and end; phases of a stream nest. On a CPU stream
  // the stream itself reads the clock when it reaches them.
  virtual void begin_phase(const SpanInfo& info) {
    flush();
    if (trace_row_) mark([this, info = labelled(info)] { phases_.push_back({info, now_ns()}); });
  }
  virtual void end_phase() {
    flush();
    if (!trace_row_) return;
    mark([this] {
      Span phase = phases_.back();
      phases_.pop_back();
      phase.end_ns = now_ns();
      trace_row_->add(phase);
    });
  }

  // Deferred enqueue: `queue` is called once, before anything else is queued. For streams of a device that captures()
  // (device.h), and one caller at a time (kernels/graph_ops.h).
  void hold(std::function<void()> queue) { held_ = std::move(queue); }
  // Queues the deferred work. Every call that queues on such a stream begins with flush().
  void flush() {
    if (held_) std::exchange(held_, nullptr)();
  }

  void set_trace_row(TraceRow* row) { trace_row_ = row; }
  TraceRow* trace_row() const { return trace_row_; }

  // The label of the spans of work queued from now on.
  SpanLabel& label() { return label_; }
  SpanInfo labelled(SpanInfo info) const {
    info.label = label_;
    return info;
  }
  // For a rank's compute stream. Work queued on `to` from now on serves the same purpose as this stream's, and its
  // input is ready once the work queued here so far is done: a zero-length phase "ready" marks that time, with the
  // same hand_over number as the spans on `to`.
  void hand_over(Stream& to) {
    label_.hand_over = ++hand_overs_;
    begin_phase({"ready", Category::phase});
    end_phase();
    to.label_ = label_;
    label_.hand_over = 0;
  }
  bool is_inline() const { return inline_; }

 protected:
  virtual void enqueue(std::function<void()> work) = 0;
  bool inline_ = false;

 private:
  template <class F>
  void call(const SpanInfo& info, F& f) {
    ScopedSpan span(trace_row_, info);
    if constexpr (std::is_invocable_v<F&, SpanClock&>) f(span.clock());
    else f();
  }

  template <class F>
  void mark(F&& f) {
    if (inline_) f();
    else enqueue(std::forward<F>(f));
  }

  TraceRow* trace_row_ = nullptr;
  SpanLabel label_;
  int64_t hand_overs_ = 0;
  std::function<void()> held_;
  std::vector<Span> phases_;  // begun and not yet ended, as of the stream's position
};

// RAII: sets the label in a scope.
struct ScopedLabel {
  ScopedLabel(Stream& s, const SpanLabel& label) : stream(s), before(std::exchange(s.label(), label)) {}
  ~ScopedLabel() { stream.label() = before; }
  ScopedLabel(const ScopedLabel&) = delete;

  Stream& stream;
  const SpanLabel before;
};

// RAII: a phase over a scope.
class ScopedPhase {
 public:
  ScopedPhase(Stream& stream, const SpanInfo& info) : stream_(stream), exceptions_(std::uncaught_exceptions()) {
    stream_.begin_phase(info);
  }
  ~ScopedPhase() noexcept(false) {
    if (std::uncaught_exceptions() == exceptions_) stream_.end_phase();  // else the stream may be poisoned
  }
  ScopedPhase(const ScopedPhase&) = delete;
  ScopedPhase& operator=(const ScopedPhase&) = delete;

 private:
  Stream& stream_;
  const int exceptions_;
};

}  // namespace trivet
