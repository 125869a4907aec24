// HostRange: what a host thread is at, told to a profiler (NVTX: Nsight Systems and others). The names are those of the
// trace's spans, and ranges follow the host: on a GPU a range is the time in which work is queued, beside which the
// profiler shows when it ran. Without a tool attached a range costs two tests of a pointer; in a build without NVTX
// (no_nvtx.cc) two empty calls.
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
