#include "engine/metrics/trace_file.h"

#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <map>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"

namespace trivet {
namespace {

using nlohmann::json;

template <class F>
void for_each_event(const std::string& path, F&& f) {
  for_each_line(path, [&](const std::string& line, int64_t number) {
    if (!line.starts_with(",{")) return;
    json event = parse_json(std::string_view(line).substr(1), BadJson::discarded);
    if (event.is_discarded()) throw DataError(fmt::format("{} line {}: is not a trace event", path, number));
    try {
      f(event);
    } catch (const json::exception& error) {
      throw DataError(fmt::format("{} line {}: is not an event written by Trivet: {}", path, number, json_problem(error)));
    }
  });
}

bool is_span(const json& event) {
  return event.at("ph") == "X" && event.at("cat") != "wait" && event.at("cat") != "exposed";
}

Interval interval_of(const json& microseconds, const json& duration) {
  const auto ns = [](const json& value) { return std::llround(value.get<double>() * 1e3); };
  return {ns(microseconds), ns(microseconds) + ns(duration)};
}

TraceSpan span_of(const json& event) {
  const json& args = event.at("args");
  TraceSpan span{.name = event.at("name"),
                 .category = event.at("cat"),
                 .step = args.at("step"),
                 .time = interval_of(event.at("ts"), event.at("dur")),
                 .bytes = args.value("bytes", int64_t{0}),
                 .microbatch = args.value("microbatch", -1),
                 .chunk = args.value("chunk", -1),
                 .bucket = args.value("bucket", -1),
                 .layer = args.value("layer", "")};
  span.ready_ns = args.contains("ready_ts") ? interval_of(args["ready_ts"], 0).begin : span.time.begin;
  if (args.contains("wire_ts")) span.wire = interval_of(args["wire_ts"], args.at("wire_dur"));
  return span;
}

void turn_into_kernel(json& event, int64_t number) {
  const std::string category = event.at("cat"), name = event.at("name");
  if (category.starts_with("comm.")) event["name"] = "ncclDevKernel_" + name;
  event["cat"] = category == "phase" ? "user_annotation" : category == "host" ? "cpu_op" : "kernel";
  if (event["cat"] != "kernel") return;
  // `number` stands in for the launch id, which our traces do not have.
  event["args"].update({{"device", event.at("pid")}, {"stream", event.at("tid")}, {"correlation", number}});
}

}  // namespace

void for_each_span(const std::string& trace_path, const std::function<void(const TraceSpan&)>& each) {
  std::map<int, std::string> processes;             // by pid
  std::map<std::pair<int, int>, std::string> rows;  // by pid, tid
  for_each_event(trace_path, [&](const json& event) {
    const std::pair<int, int> at(event.at("pid"), event.at("tid"));
    if (event.at("name") == "process_name") processes[at.first] = event.at("args").at("name");
    if (event.at("name") == "thread_name") rows[at] = event.at("args").at("name");
    if (!is_span(event)) return;
    TraceSpan span = span_of(event);
    span.rank = at.first - 1;
    span.process = processes[at.first];
    span.row = rows[at];
    const size_t stage = span.process.find("pp ");
    span.first_of_stage = stage != span.process.npos;
    if (span.first_of_stage) span.stage = std::atoi(span.process.c_str() + stage + 3);
    for (const char* axis : {"tp ", "cp ", "dp "})
      if (const size_t at = span.process.find(axis); at != span.process.npos)
        span.first_of_stage &= std::atoi(span.process.c_str() + at + 3) == 0;
    each(span);
  });
}

int ranks_of_trace(const std::string& trace_path) {
  int ranks = 0;
  for_each_event(trace_path, [&](const json& event) { ranks += event.at("name") == "process_name" ? 1 : 0; });
  if (ranks == 0)
    throw DataError(trace_path + ": names no rank; expected a trace written with train.trace=true, one event per line");
  return ranks;
}

std::string trace_of_run(const std::string& run_dir) {
  const std::string path = run_dir + "/trace.json";
  if (!file_exists(run_dir)) throw ConfigError(run_dir + ": there is no such file or directory");
  if (!file_exists(path)) throw DataError(path + ": not found; a run with train.trace=true writes it");
  return path;
}

void write_hta_traces(const std::string& trace_path, const std::string& folder) {
  std::map<int, std::string> events;  // by rank, each preceded by a comma
  int64_t number = 0;
  for_each_event(trace_path, [&](json& event) {
    if (!is_span(event) || event.at("dur") < 1) return;  // HTA rounds each end to whole microseconds
    turn_into_kernel(event, ++number);
    events[event.at("pid").get<int>() - 1] += ",\n" + event.dump();
  });
  make_folder(folder);
  for (const auto& [rank, text] : events)  // HTA searches the text for the rank, including the space
    write_file(fmt::format("{}/rank{}.json", folder, rank),
               fmt::format(R"({{"schemaVersion":1,"distributedInfo":{{"backend":"nccl","rank": {},"world_size":{}}},)"
                           R"("deviceProperties":[],"traceEvents":[{}
]}}
)",
                           rank, events.size(), std::string_view(text).substr(1)));
}

}  // namespace trivet
