// CudaSpans: measures when the work of a CUDA stream began and ended, by timing events around it, and adds spans to the
// stream's trace row once the GPU has passed them. The host never waits for that: complete spans are added whenever the
// next span begins, and the rest when the stream is synchronised. Used by the thread that feeds the stream.
#pragma once

#include <algorithm>
#include <deque>
#include <vector>

#include "kernels/base/cuda_device.h"

namespace trivet {

class CudaSpans {
 public:
  // The stream must be new: its first event relates the GPU's clock to the host's.
  explicit CudaSpans(cudaStream_t stream) : stream_(stream), anchor_(recorded()) {
    check_cuda(cudaEventSynchronize(anchor_), "cudaEventSynchronize");
    anchor_ns_ = now_ns();
  }
  CudaSpans(const CudaSpans&) = delete;
  CudaSpans& operator=(const CudaSpans&) = delete;

  ~CudaSpans() {
    if (row_) row_->set_source(nullptr);
  }
  void begin(const SpanInfo& info, TraceRow& row) {
    attach(row);
    report_complete();
    pending_.push_back({info, &row, recorded(), {}});
  }
  void end() { pending_.back().end = recorded(); }
  // Phases enclose spans, and nest.
  void begin_phase(const SpanInfo& info, TraceRow& row) {
    attach(row);
    phases_.push_back({info, &row, recorded(), {}});
  }
  void end_phase() {
    const auto open = std::find_if(phases_.rbegin(), phases_.rend(), [](const Pending& phase) { return !phase.end; });
    if (open != phases_.rend()) open->end = recorded();
  }
  void report_complete() {
    for (std::deque<Pending>* spans : {&phases_, &pending_}) {
      while (!spans->empty() && spans->front().end) {
        Pending& span = spans->front();
        if (!has_happened(span.end)) break;
        report(span);
        // Milliseconds in a float lose resolution with time, so the anchor moves up now and then. Phases begin before
        // the spans inside them end, so it moves only when no phase is open or unreported.
        if (phases_.empty() && nanoseconds_at(span.end) - anchor_ns_ > 10'000'000'000) {
          anchor_ns_ = nanoseconds_at(span.end);
          std::swap(anchor_, span.end);
        }
        free_.push_back(std::move(span.begin));
        free_.push_back(std::move(span.end));
        spans->pop_front();
      }
    }
  }

 private:
  using TimingEvent = Handle<cudaEvent_t, cudaEventDestroy>;
  struct Pending {
    SpanInfo info;
    TraceRow* row;
    TimingEvent begin, end;
  };

  void attach(TraceRow& row) {
    if (row_ == &row) return;
    if (row_) row_->set_source(nullptr);
    row_ = &row;
    row.set_source([this] { report_complete(); });
  }
  void report(Pending& span) {
    const int64_t start = nanoseconds_at(span.begin), end = nanoseconds_at(span.end);
    span.row->add({.info = span.info, .start_ns = start, .end_ns = std::max(start, end)});
  }
  TimingEvent recorded() {
    TimingEvent event;
    if (free_.empty()) {
      check_cuda(cudaEventCreate(event.out()), "cudaEventCreate");
    } else {
      event = std::move(free_.back());
      free_.pop_back();
    }
    check_cuda(cudaEventRecord(event, stream_), "cudaEventRecord");
    return event;
  }
  int64_t nanoseconds_at(cudaEvent_t event) {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, anchor_, event), "cudaEventElapsedTime");
    return anchor_ns_ + static_cast<int64_t>(1e6 * static_cast<double>(milliseconds));
  }

  const cudaStream_t stream_;
  std::vector<TimingEvent> free_;
  TraceRow* row_ = nullptr;      // its take() fetches the complete spans
  std::deque<Pending> pending_;  // in stream order; the last may still lack its end
  std::deque<Pending> phases_;   // in the order in which they began; those still open lack their ends
  TimingEvent anchor_;           // passed at anchor_ns_ on the host's clock
  int64_t anchor_ns_ = 0;
};

}  // namespace trivet
