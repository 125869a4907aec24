// Reads a run's trace, one event per line, as perfetto.h defines it, and converts it for Holistic Trace Analysis.
#pragma once

#include <functional>
#include <string>

#include "base/intervals.h"

namespace trivet {

struct TraceSpan {
  int rank = 0, stage = 0;
  bool first_of_stage = false;   // its tp, cp and dp ranks are 0
  std::string process{}, row{};  // "rank 3 (tp 1, pp 0, dp 1)"; the stream
  std::string name, category;    // "matmul", "compute"; "all_gather", "comm.data"
  int64_t step = 0;
  Interval time;                                 // nanoseconds since the trace's origin, like all times here
  int64_t ready_ns = 0;                          // of a call; its start if not in the trace
  Interval wire{};                               // of a call; empty: none
  int64_t bytes = 0;                             // 0: none or unknown
  int microbatch = -1, chunk = -1, bucket = -1;  // -1: none
  std::string layer;                             // "": none; for a bucket "layer 1 to head"

  bool is_call() const { return category.starts_with("comm."); }
  bool is_work() const { return category == "compute" || category == "optimizer"; }
};

// Calls each(span) in file order, skipping slices that are parts of a span (waits, exposed wire). Throws IoError, or
// DataError naming the line that is not a trace event.
void for_each_span(const std::string& trace_path, const std::function<void(const TraceSpan&)>& each);

// The number of ranks in the trace. Throws IoError, or DataError if it names none.
int ranks_of_trace(const std::string& trace_path);

// RUN_DIR/trace.json. Throws ConfigError if RUN_DIR does not exist, DataError if it has no trace.
std::string trace_of_run(const std::string& run_dir);

// Converts a trace for Holistic Trace Analysis (https://hta.readthedocs.io), which reads a folder with one file per
// rank, as the PyTorch profiler writes it: folder/rank0.json and so on; creates the folder. Work and calls become GPU
// kernels, whatever device they ran on; calls get NCCL's prefix and, like NCCL kernels, start when their stream reached
// them, so they include the wait. Omits "ProfilerStep" ranges: with them, as HTA notes, it drops kernels whose
// launch is not in the trace. Throws IoError, DataError.
void write_hta_traces(const std::string& trace_path, const std::string& folder);

}  // namespace trivet
