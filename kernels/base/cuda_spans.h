// CudaSpans: when the work of a CUDA stream began and ended, by timing events around it, told to the stream's trace row
// once the GPU is past them. The host never waits for that: complete spans are told whenever the next one begins, and
// the rest when the stream is synchronised. Used by the thread that feeds the stream.
#pragma once

#include <deque>
#include <vector>

#include "kernels/base/cuda_device.h"

namespace trivet {

class CudaSpans {
 public:
  // The stream is new: its first event fixes the GPU's clock against the host's.
  explicit CudaSpans(cudaStream_t stream);
  CudaSpans(const CudaSpans&) = delete;
  CudaSpans& operator=(const CudaSpans&) = delete;

  ~CudaSpans();
  void begin(const SpanInfo& info, TraceRow& row);
  void end();
  // Phases lie over spans, and nest.
  void begin_phase(const SpanInfo& info, TraceRow& row);
  void end_phase();
  void tell_complete();

 private:
  using TimingEvent = Handle<cudaEvent_t, cudaEventDestroy>;
  struct Pending {
    SpanInfo info;
    TraceRow* row;
    TimingEvent begin, end;
  };

  void attach(TraceRow& row);
  void tell(Pending& span);
  TimingEvent recorded();
  int64_t nanoseconds_at(cudaEvent_t event);

  const cudaStream_t stream_;
  std::vector<TimingEvent> free_;
  TraceRow* row_ = nullptr;      // whose take() asks for what is complete
  std::deque<Pending> pending_;  // in stream order; the last may still lack its end
  std::deque<Pending> phases_;   // in the order of their beginnings; those still open lack their ends
  TimingEvent anchor_;           // passed at anchor_ns_ of the host's clock
  int64_t anchor_ns_ = 0;
};

}  // namespace trivet
