// Perfetto: the spans of a run as Chrome trace JSON, for ui.perfetto.dev or chrome://tracing: one process a rank, one
// row a stream, times in microseconds since the start of the run. Numbered from 1: process r + 1 is rank r. In a
// communication lies a slice "wait", up to when its first byte may move; arrows lead from each send to the end of its
// receive.
//
// Each rank streams its own part, one event a line, so that a crash leaves a trace that viewers still read (they do
// not miss the closing bracket), and rank 0 joins the parts when all have been closed.
#pragma once

#include <fmt/format.h>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/files.h"
#include "kernels/base/trace.h"

namespace trivet {

class PerfettoWriter {
 public:
  // `process`: how the rank is called, "rank 3 (tp 1, dp 0)". `rows`: the names of the streams, in their order on the
  // screen. `origin_ns`: the time 0 of the trace, one for all ranks. Throws IoError when the file cannot be created;
  // when the disk fills up later, warns once and loses steps.
  PerfettoWriter(std::string path, int rank, const std::string& process, std::span<const std::string> rows,
                 int64_t origin_ns, AppendFile::Warn warn);
  ~PerfettoWriter();  // closes

  // The spans of one step, by row as in the constructor.
  void step(int64_t step, std::span<const std::vector<Span>> rows);
  void close();

 private:
  const std::string& json_name(const char* name);
  void put_slice(fmt::memory_buffer& out, size_t row, const std::string& json_name, const char* category,
                 int64_t start_ns, int64_t end_ns);
  void put_arrow_end(fmt::memory_buffer& out, size_t row, const Span& span);

  AppendFile file_;
  int rank_;
  int64_t origin_ns_;
  bool closed_ = false;
  std::unordered_map<const char*, std::string> names_;  // of spans, as JSON; they are few, and literals
};

// Writes the events of all parts (whole ones, or cut off by a crash) to `path`. Throws IoError.
void join_traces(std::span<const std::string> parts, const std::string& path);

}  // namespace trivet
