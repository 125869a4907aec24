// Shared by CUDA code of every layer: checked calls, the raw handles of Stream and Event, RAII for C handles.
// Included only by files that CMake leaves out of a build without CUDA (cuda_*.cc, nccl_*.cc, *.cu).
//
// CUDA's current device belongs to a host thread. A rank creates its Device, streams and events on the thread that
// later queues its work; another thread that uses them calls cudaSetDevice first.
#pragma once

#include <cuda_runtime_api.h>
#include <source_location>
#include <utility>

#include "kernels/base/device.h"

namespace trivet {

// Throws Error with the call's name and the error's CUDA name and text.
void check_cuda(cudaError_t status, const char* call, std::source_location at = std::source_location::current());

// True if everything queued before the event's last record has finished. (CUDA also sets the thread's last error to
// "not ready", which enqueue() below would take for a failed launch, so it is cleared.)
bool has_happened(cudaEvent_t event);

// REQUIRES: created by a CUDA device.
cudaStream_t raw(Stream& stream);
cudaEvent_t raw(Event& event);

// Mark the beginning and end of a span in the stream's trace row; no-ops if it has none. Spans do not nest.
void begin_span(Stream& stream, const SpanInfo& info);
void end_span(Stream& stream);

// Queues f(cudaStream_t), the work of one span, and checks that its kernels were launched. A profiler shows its host
// side as a range named after the span.
template <class F>
void enqueue(Stream& stream, const SpanInfo& info, F&& f) {
  const HostRange range(info.name);
  begin_span(stream, info);
  f(raw(stream));
  check_cuda(cudaGetLastError(), info.name);
  end_span(stream);
}

// Looks up a function of the driver library, which is not linked, as a build machine may lack it. Throws Error if the
// loaded driver does not have the function.
template <class F>
F* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check_cuda(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found),
             "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess) fail(std::string("the CUDA driver has no ") + name);
  return reinterpret_cast<F*>(function);
}

// Owns one C handle and frees it with `destroy`, whose result is ignored, as a destructor cannot report it.
template <class T, auto destroy>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T raw) : raw_(raw) {}
  ~Handle() {
    if (raw_) destroy(raw_);
  }
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, T{})) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  operator T() const { return raw_; }  // NOLINT: it stands in for the handle
  T* out() { return &raw_; }           // for a create function to fill

 private:
  T raw_{};
};

}  // namespace trivet
