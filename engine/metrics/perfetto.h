// Perfetto: the spans of a run as Chrome trace JSON, for ui.perfetto.dev or chrome://tracing: one process per rank, one
// row per stream, times in microseconds since the start of the run. Numbering starts at 1: process r+1 is rank r. A
// communication's slice contains a slice "wait", until its first byte can move, and a slice "exposed" wherever it
// was on the wire while the rank computed nothing; arrows lead from each send to the end of its receive. Its arguments:
//
//   bytes, ranks          tensor size (as in nccl-tests); group size
//   bucket, layer         gradient or weight bucket; the layers that own its parameters, else the layers that ran
//   microbatch, chunk     the pipeline op that made the call
//   ready_ts              when its input was ready; its stream reached it at `ts`
//   wire_ts, wire_dur     time on the wire; algbw_GBps (bytes over that time) and exposed_us refer to it
//
// Each rank streams its own part, one event per line, so that a crash leaves a trace that viewers can still read (they
// tolerate the missing bracket), and rank 0 joins the parts when all are closed.
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
  struct Names {
    std::string process{};             // the rank's name, "rank 3 (tp 1, dp 0)"
    std::vector<std::string> rows{};   // names of the streams, in display order
    std::vector<std::string> units{};  // of the model's units on this rank, "layer 3"; labels index them
  };
  // `origin_ns`: time 0 of the trace, the same on all ranks. Throws IoError if the file cannot be created; if the disk
  // fills up later, warns once and drops steps.
  PerfettoWriter(std::string path, int rank, const Names& names, int64_t origin_ns, AppendFile::Warn warn);
  ~PerfettoWriter();  // closes

  // Writes the spans of one step; rows as in Names.
  void step(int64_t step, std::span<const std::vector<Span>> rows);
  void close();

 private:
  const std::string& json_name(const char* name);
  void put_slice(fmt::memory_buffer& out, size_t row, const char* name, const char* category, const Interval& time);
  void put_label(fmt::memory_buffer& out, const SpanLabel& label) const;
  void put_communication(fmt::memory_buffer& out, size_t row, const Span& span);
  void put_arrow_end(fmt::memory_buffer& out, size_t row, const Span& span);

  AppendFile file_;
  int rank_;
  int64_t origin_ns_;
  std::vector<std::string> units_;
  // From the previous step, in which a call may have begun, and this one.
  std::vector<Interval> computed_before_, computed_;
  std::unordered_map<int64_t, int64_t> ready_ns_before_, ready_ns_;  // by SpanLabel::hand_over
  bool closed_ = false;
  std::unordered_map<const char*, std::string> names_;  // span names as JSON; few, all string literals
};

// Writes the events of all parts (complete, or truncated by a crash) to `path`. Throws IoError.
void join_traces(std::span<const std::string> parts, const std::string& path);

}  // namespace trivet
