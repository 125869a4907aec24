#include "engine/metrics/perfetto.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/compile.h>
#include <fmt/format.h>
#include <fstream>
#include <iterator>

#include "base/files.h"
#include "base/json.h"
#include "kernels/base/check.h"

namespace trivet {
namespace {

// The first line of a file opens the array with an event that needs no comma before it (how rank 0 is sorted, which is
// true of every file); each later event brings its comma along, so that the file is complete but for its last line
// whenever the writer dies.
constexpr std::string_view kOpening =
    "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["
    "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":1,\"tid\":1,\"args\":{\"sort_index\":0}}\n";
constexpr std::string_view kClosing = "]}\n";

// Process and thread 0 are the idle task to Perfetto, which hides or merges them.
int pid_of(int rank) { return rank + 1; }
size_t tid_of(size_t row) { return row + 1; }

std::string metadata(const char* name, int rank, size_t row, const std::string& args) {
  return fmt::format(",{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{{}}}}}\n", name, pid_of(rank),
                     tid_of(row), args);
}

// Microseconds with all nanoseconds; a double would lose them after a few months of uptime.
void put_microseconds(fmt::memory_buffer& out, int64_t ns) {
  const uint64_t magnitude = ns < 0 ? 0 - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  fmt::format_to(std::back_inserter(out), FMT_COMPILE("{}{}.{:03}"), ns < 0 ? "-" : "", magnitude / 1000,
                 magnitude % 1000);
}

}  // namespace

PerfettoWriter::PerfettoWriter(std::string path, int rank, const std::string& process,
                               std::span<const std::string> rows, int64_t origin_ns, AppendFile::Warn warn)
    : file_(std::move(path), AppendFile::Start::empty, std::move(warn)), rank_(rank), origin_ns_(origin_ns) {
  std::string text(kOpening);
  text += metadata("process_name", rank, 0, "\"name\":" + json_text(process));
  text += metadata("process_sort_index", rank, 0, fmt::format("\"sort_index\":{}", rank));
  for (size_t row = 0; row < rows.size(); ++row) {
    text += metadata("thread_name", rank, row, "\"name\":" + json_text(rows[row]));
    text += metadata("thread_sort_index", rank, row, fmt::format("\"sort_index\":{}", row));
  }
  if (!file_.append(text)) closed_ = true;  // without its opening the rest makes no trace
}

PerfettoWriter::~PerfettoWriter() { close(); }

const std::string& PerfettoWriter::json_name(const char* name) {
  std::string& text = names_[name];
  if (text.empty()) text = json_text(name);
  return text;
}

// Without its last brackets: arguments may follow.
void PerfettoWriter::put_slice(fmt::memory_buffer& out, size_t row, const std::string& json_name, const char* category,
                               int64_t start_ns, int64_t end_ns) {
  fmt::format_to(std::back_inserter(out),
                 FMT_COMPILE(",{{\"ph\":\"X\",\"name\":{},\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":"), json_name,
                 category, pid_of(rank_), tid_of(row));
  put_microseconds(out, start_ns - origin_ns_);
  fmt::format_to(std::back_inserter(out), FMT_COMPILE(",\"dur\":"));
  put_microseconds(out, end_ns - start_ns);
}

// An arrow's end belongs to the slice around its time: a send's at its start, a receive's just before its end. Only the
// receive has a wire.
void PerfettoWriter::put_arrow_end(fmt::memory_buffer& out, size_t row, const Span& span) {
  const bool arrives = span.wire_end_ns > span.wire_start_ns;
  fmt::format_to(
      std::back_inserter(out),
      FMT_COMPILE(",{{\"ph\":\"{}\",\"bp\":\"e\",\"name\":\"transfer\",\"cat\":\"transfer\",\"id\":\"0x{:x}\","
                  "\"pid\":{},\"tid\":{},\"ts\":"),
      arrives ? "f" : "s", span.transfer_id, pid_of(rank_), tid_of(row));
  put_microseconds(out, (arrives ? std::max(span.end_ns - 1, span.start_ns) : span.start_ns) - origin_ns_);
  fmt::format_to(std::back_inserter(out), FMT_COMPILE("}}\n"));
}

void PerfettoWriter::step(int64_t step, std::span<const std::vector<Span>> rows) {
  if (closed_) return;
  fmt::memory_buffer out;
  const auto to = std::back_inserter(out);
  for (size_t row = 0; row < rows.size(); ++row) {
    for (const Span& span : rows[row]) {
      put_slice(out, row, json_name(span.info.name), name_of(span.info.category).c_str(), span.start_ns, span.end_ns);
      fmt::format_to(to, FMT_COMPILE(",\"args\":{{\"step\":{}"), step);
      if (span.info.bytes > 0) fmt::format_to(to, FMT_COMPILE(",\"bytes\":{}"), span.info.bytes);
      if (span.info.microbatch >= 0) fmt::format_to(to, FMT_COMPILE(",\"microbatch\":{}"), span.info.microbatch);
      if (span.info.chunk >= 0) fmt::format_to(to, FMT_COMPILE(",\"chunk\":{}"), span.info.chunk);
      fmt::format_to(to, FMT_COMPILE("}}}}\n"));
      if (span.wire_start_ns > span.start_ns) {
        put_slice(out, row, json_name("wait"), "wait", span.start_ns, std::min(span.wire_start_ns, span.end_ns));
        fmt::format_to(to, FMT_COMPILE("}}\n"));
      }
      if (span.transfer_id != 0) put_arrow_end(out, row, span);
    }
  }
  if (out.size() > 0) file_.append({out.data(), out.size()});
}

void PerfettoWriter::close() {
  if (!closed_) file_.append(kClosing);
  closed_ = true;
}

void join_traces(std::span<const std::string> parts, const std::string& path) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << kOpening;
  for (const std::string& part : parts) {
    for_each_line(part, [&](const std::string& line, int64_t) {
      if (line.starts_with(',')) out << line << '\n';
    });
  }
  out << kClosing;
  out.flush();
  if (!out) throw IoError(path + ": cannot be written: " + std::strerror(errno));
}

}  // namespace trivet
