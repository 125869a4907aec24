#include "kernels/base/cuda_spans.h"

#include <algorithm>

namespace trivet {

CudaSpans::CudaSpans(cudaStream_t stream) : stream_(stream), anchor_(recorded()) {
  check_cuda(cudaEventSynchronize(anchor_), "cudaEventSynchronize");
  anchor_ns_ = now_ns();
}

CudaSpans::~CudaSpans() {
  if (row_) row_->set_source(nullptr);
}

void CudaSpans::attach(TraceRow& row) {
  if (row_ == &row) return;
  if (row_) row_->set_source(nullptr);
  row_ = &row;
  row.set_source([this] { tell_complete(); });
}

void CudaSpans::begin(const SpanInfo& info, TraceRow& row) {
  attach(row);
  tell_complete();
  pending_.push_back({info, &row, recorded(), {}});
}

void CudaSpans::end() { pending_.back().end = recorded(); }

void CudaSpans::begin_phase(const SpanInfo& info, TraceRow& row) {
  attach(row);
  phases_.push_back({info, &row, recorded(), {}});
}

void CudaSpans::end_phase() {
  const auto open = std::find_if(phases_.rbegin(), phases_.rend(), [](const Pending& phase) { return !phase.end; });
  if (open != phases_.rend()) open->end = recorded();
}

void CudaSpans::tell(Pending& span) {
  const int64_t start = nanoseconds_at(span.begin), end = nanoseconds_at(span.end);
  span.row->add({.info = span.info, .start_ns = start, .end_ns = std::max(start, end)});
}

void CudaSpans::tell_complete() {
  for (std::deque<Pending>* spans : {&phases_, &pending_}) {
    while (!spans->empty() && spans->front().end) {
      Pending& span = spans->front();
      if (!has_happened(span.end)) break;
      tell(span);
      // A float of milliseconds grows coarse with time: the clock goes on from here now and then. Phases begin before
      // the spans under them end, so the clock is theirs to set only when none is open or untold.
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
