#include "engine/metrics/perfetto.h"

#include <algorithm>
#include <cstring>
#include <fmt/compile.h>
#include <fmt/format.h>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"

namespace trivet {
namespace {

// The first line of a file opens the array with an event that needs no comma before it (rank 0's sort index, valid in
// every file); each later event begins with its comma, so that the file is complete except for its last line whenever
// the writer dies.
constexpr std::string_view kOpening =
    "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["
    "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":1,\"tid\":1,\"args\":{\"sort_index\":0}}\n";
constexpr std::string_view kClosing = "]}\n";

// Perfetto treats process and thread 0 as the idle task, and hides or merges them.
int pid_of(int rank) { return rank + 1; }
size_t tid_of(size_t row) { return row + 1; }

std::string metadata(const char* name, int rank, size_t row, const std::string& args) {
  return fmt::format(",{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{{}}}}}\n", name, pid_of(rank),
                     tid_of(row), args);
}

// Writes microseconds with three decimals; a double would lose the nanoseconds after a few months of uptime.
void put_time(fmt::memory_buffer& out, std::string_view name, int64_t ns) {
  const uint64_t magnitude = ns < 0 ? 0 - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  fmt::format_to(std::back_inserter(out), FMT_COMPILE(",\"{}\":{}{}.{:03}"), name, ns < 0 ? "-" : "", magnitude / 1000,
                 magnitude % 1000);
}

}  // namespace

PerfettoWriter::PerfettoWriter(std::string path, int rank, const Names& names, int64_t origin_ns, AppendFile::Warn warn)
    : file_(std::move(path), AppendFile::Start::empty, std::move(warn)),
      rank_(rank),
      origin_ns_(origin_ns),
      units_(names.units) {
  std::string text(kOpening);
  text += metadata("process_name", rank, 0, "\"name\":" + json_text(names.process));
  text += metadata("process_sort_index", rank, 0, fmt::format("\"sort_index\":{}", rank));
  for (size_t row = 0; row < names.rows.size(); ++row) {
    text += metadata("thread_name", rank, row, "\"name\":" + json_text(names.rows[row]));
    text += metadata("thread_sort_index", rank, row, fmt::format("\"sort_index\":{}", row));
  }
  if (!file_.append(text)) closed_ = true;  // without the opening the rest is not a trace
}

PerfettoWriter::~PerfettoWriter() { close(); }

const std::string& PerfettoWriter::json_name(const char* name) {
  std::string& text = names_[name];
  if (text.empty()) text = json_text(name);
  return text;
}

// Omits the closing brackets: arguments may follow.
void PerfettoWriter::put_slice(fmt::memory_buffer& out, size_t row, const char* name, const char* category,
                               const Interval& time) {
  fmt::format_to(std::back_inserter(out),
                 FMT_COMPILE(",{{\"ph\":\"X\",\"name\":{},\"cat\":\"{}\",\"pid\":{},\"tid\":{}"), json_name(name),
                 category, pid_of(rank_), tid_of(row));
  put_time(out, "ts", time.begin - origin_ns_);
  put_time(out, "dur", time.length());
}

// Viewers attach an arrow to the slice that encloses its timestamp: the start of a send, just before the end of a
// receive. Only a receive has wire time.
void PerfettoWriter::put_arrow_end(fmt::memory_buffer& out, size_t row, const Span& span) {
  const bool arrives = span.wire_end_ns > span.wire_start_ns;
  fmt::format_to(
      std::back_inserter(out),
      FMT_COMPILE(",{{\"ph\":\"{}\",\"bp\":\"e\",\"name\":\"transfer\",\"cat\":\"transfer\",\"id\":\"0x{:x}\","
                  "\"pid\":{},\"tid\":{}"),
      arrives ? "f" : "s", span.transfer_id, pid_of(rank_), tid_of(row));
  put_time(out, "ts", (arrives ? std::max(span.end_ns - 1, span.start_ns) : span.start_ns) - origin_ns_);
  fmt::format_to(std::back_inserter(out), FMT_COMPILE("}}\n"));
}

void PerfettoWriter::put_label(fmt::memory_buffer& out, const SpanLabel& label) const {
  const auto to = std::back_inserter(out);
  if (label.microbatch >= 0) fmt::format_to(to, FMT_COMPILE(",\"microbatch\":{}"), label.microbatch);
  if (label.chunk >= 0) fmt::format_to(to, FMT_COMPILE(",\"chunk\":{}"), label.chunk);
  if (label.bucket >= 0) fmt::format_to(to, FMT_COMPILE(",\"bucket\":{}"), label.bucket);
  if (label.first_unit < 0 || static_cast<size_t>(label.last_unit) >= units_.size()) return;
  fmt::format_to(to, FMT_COMPILE(",\"layer\":\"{}"), units_[static_cast<size_t>(label.first_unit)]);
  if (label.last_unit != label.first_unit)
    fmt::format_to(to, FMT_COMPILE(" to {}"), units_[static_cast<size_t>(label.last_unit)]);
  out.push_back('"');
}

// Writes a call's arguments other than its label, and the slices within it.
void PerfettoWriter::put_communication(fmt::memory_buffer& out, size_t row, const Span& span) {
  const auto to = std::back_inserter(out);
  const Interval wire = span.wire();
  const std::vector<Interval> exposed = gaps(computed_, wire);
  if (span.info.ranks > 0) fmt::format_to(to, FMT_COMPILE(",\"ranks\":{}"), span.info.ranks);
  for (const auto* marks : {&ready_ns_, &ready_ns_before_})
    if (const auto mark = marks->find(span.info.label.hand_over); mark != marks->end())
      put_time(out, "ready_ts", std::min(mark->second, span.start_ns) - origin_ns_);
  if (wire.length() > 0) {
    put_time(out, "wire_ts", wire.begin - origin_ns_);
    put_time(out, "wire_dur", wire.length());
    fmt::format_to(to, FMT_COMPILE(",\"algbw_GBps\":{:.4g}"),
                   static_cast<double>(span.info.bytes) / static_cast<double>(wire.length()));
    put_time(out, "exposed_us", length_of(exposed));
  }
  fmt::format_to(to, FMT_COMPILE("}}}}\n"));
  // Slices in a row must nest, but the wire time of a late receive began before its slice.
  const auto put_part = [&](const char* name, const Interval& time) {
    const Interval part = time.cut_to({span.start_ns, span.end_ns});
    if (part.begin >= part.end) return;
    put_slice(out, row, name, name, part);
    fmt::format_to(to, FMT_COMPILE("}}\n"));
  };
  put_part("wait", {span.start_ns, wire.begin});
  for (const Interval& part : exposed) put_part("exposed", part);
  if (span.transfer_id != 0) put_arrow_end(out, row, span);
}

void PerfettoWriter::step(int64_t step, std::span<const std::vector<Span>> rows) {
  if (closed_) return;
  std::vector<Interval> computed;
  ready_ns_before_ = std::exchange(ready_ns_, {});
  for (const std::vector<Span>& row : rows)
    for (const Span& span : row) {
      if (span.info.category == Category::compute || span.info.category == Category::optimizer)
        computed.push_back({span.start_ns, span.end_ns});
      else if (span.info.category == Category::phase && span.info.label.hand_over > 0)
        ready_ns_[span.info.label.hand_over] = span.end_ns;
    }
  computed_before_.insert(computed_before_.end(), computed.begin(), computed.end());
  computed_ = united(std::exchange(computed_before_, std::move(computed)));

  fmt::memory_buffer out;
  for (size_t row = 0; row < rows.size(); ++row) {
    for (const Span& span : rows[row]) {
      put_slice(out, row, span.info.name, name_of(span.info.category).c_str(), {span.start_ns, span.end_ns});
      fmt::format_to(std::back_inserter(out), FMT_COMPILE(",\"args\":{{\"step\":{}"), step);
      if (span.info.bytes > 0) fmt::format_to(std::back_inserter(out), FMT_COMPILE(",\"bytes\":{}"), span.info.bytes);
      put_label(out, span.info.label);
      if (is_comm(span.info.category)) put_communication(out, row, span);
      else fmt::format_to(std::back_inserter(out), FMT_COMPILE("}}}}\n"));
    }
  }
  if (out.size() > 0) file_.append({out.data(), out.size()});
}

void PerfettoWriter::close() {
  if (!closed_) file_.append(kClosing);
  closed_ = true;
}

void join_traces(std::span<const std::string> parts, const std::string& path) {
  OutputFile out(path);
  out.write(kOpening);
  for (const std::string& part : parts) {
    for_each_line(part, [&](const std::string& line, int64_t) {
      if (line.starts_with(',')) out.write(line + '\n');
    });
  }
  out.write(kClosing);
  out.commit();
}

}  // namespace trivet
