// A run's trace read back, one event a line, as perfetto.h defines it; and written again for another tool.
#pragma once

#include <functional>
#include <string>

#include "base/intervals.h"

namespace trivet {

struct TraceSpan {
  int rank = 0, stage = 0;
  bool first_of_stage = false;   // its tp and dp are 0
  std::string process{}, row{};  // "rank 3 (tp 1, pp 0, dp 1)"; its stream
  std::string name, category;    // "matmul", "compute"; "all_gather", "comm.data"
  int64_t step = 0;
  Interval time;                                 // nanoseconds since the trace's origin, as all times here
  int64_t ready_ns = 0;                          // of a call; its start where the trace does not tell
  Interval wire{};                               // of a call; empty: none
  int64_t bytes = 0;                             // 0: none, or none told
  int microbatch = -1, chunk = -1, bucket = -1;  // -1: none
  std::string layer;                             // ""; of a bucket "layer 1 to head"

  bool is_call() const { return category.starts_with("comm."); }
  bool is_work() const { return category == "compute" || category == "optimizer"; }
};

// Each span of the trace in the file's order; not the slices that are parts of one (waits, exposed wire). Throws
// IoError, and DataError with the line that is no event of a trace.
void for_each_span(const std::string& trace_path, const std::function<void(const TraceSpan&)>& each);

// The number of ranks in the trace. Throws IoError, and DataError if it names none.
int ranks_of_trace(const std::string& trace_path);

// RUN_DIR/trace.json. Throws IoError if there is none.
std::string trace_of_run(const std::string& run_dir);

// For Holistic Trace Analysis (https://hta.readthedocs.io), which takes a folder with a file a rank as the PyTorch
// profiler writes them: folder/rank0.json and so on; makes the folder. Work and calls are GPU kernels to it, whatever
// device they ran on, and calls have the prefix of NCCL's; a call lasts as NCCL's kernels do: from when its stream came
// to it, its wait included. Without ranges "ProfilerStep", as it notes: with them it drops kernels whose launch is not
// in the trace. Throws IoError, DataError.
void write_hta_traces(const std::string& trace_path, const std::string& folder);

}  // namespace trivet
