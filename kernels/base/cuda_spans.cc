#include "kernels/base/cuda_spans.h"

namespace trivet {

CudaSpans::CudaSpans(cudaStream_t stream) : stream_(stream), anchor_(recorded()) {
  check_cuda(cudaEventSynchronize(anchor_), "cudaEventSynchronize");
  anchor_ns_ = now_ns();
}

void CudaSpans::begin(const SpanInfo& info, TraceRow& row) {
  tell_complete();
  pending_.push_back({info, &row, recorded(), {}});
}

void CudaSpans::end() { pending_.back().end = recorded(); }

void CudaSpans::tell_complete() {
  while (!pending_.empty() && pending_.front().end) {
    Pending& span = pending_.front();
    if (!has_happened(span.end)) return;
    const int64_t start = nanoseconds_at(span.begin), end = nanoseconds_at(span.end);
    span.row->add({.info = span.info, .start_ns = start, .end_ns = std::max(start, end)});
    // A float of milliseconds grows coarse with time: the clock goes on from here now and then.
    if (end - anchor_ns_ > 10'000'000'000) {
      std::swap(anchor_, span.end);
      anchor_ns_ = end;
    }
    free_.push_back(std::move(span.begin));
    free_.push_back(std::move(span.end));
    pending_.pop_front();
  }
}

CudaSpans::TimingEvent CudaSpans::recorded() {
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

int64_t CudaSpans::nanoseconds_at(cudaEvent_t event) {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, anchor_, event), "cudaEventElapsedTime");
  return anchor_ns_ + static_cast<int64_t>(1e6 * static_cast<double>(milliseconds));
}

}  // namespace trivet
