// HostRange: a range of a host thread for profilers (NVTX: Nsight Systems and others), named after the trace's span. On
// a GPU it is the time in which work is queued; the profiler shows beside it when the work ran. Without a profiler
// attached a range costs two pointer tests; in a build without NVTX (no_nvtx.cc) two empty calls.
#pragma once

#include <cstdint>

namespace trivet {

// RAII. Ranges of a thread nest. name: a string literal.
class HostRange {
 public:
  explicit HostRange(const char* name);
  HostRange(const char* name, int64_t number);  // shown beside the name
  ~HostRange();
  HostRange(const HostRange&) = delete;
  HostRange& operator=(const HostRange&) = delete;
};

}  // namespace trivet
