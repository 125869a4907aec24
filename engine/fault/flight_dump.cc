#include "engine/fault/flight_dump.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

#include "base/files.h"
#include "base/json.h"

namespace trivet {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLargestFile = 64 << 20;

// Calls read() with the file's parsed JSON. Rethrows any error in either as a DataError that names the file.
template <class Read>
auto read_json(const std::string& path, const Read& read) {
  const std::string text = read_small_file(path, kLargestFile);
  try {
    return read(parse_json<Json>(text));
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{}: {}", path, json_problem(error)));
  }
}

double seconds_before(int64_t now, int64_t then) { return static_cast<double>(now - then) * 1e-9; }
// Age at the time of the dump, in seconds; null: never.
Json ago(const FlightLog& log, int64_t ns) {
  return ns == 0 ? Json() : Json(std::round(seconds_before(log.taken_ns, ns) * 1e6) / 1e6);
}
int64_t from_ago(const FlightLog& log, const Json& value) {
  return value.is_null() ? 0 : log.taken_ns - static_cast<int64_t>(value.get<double>() * 1e9);
}

FlightDump dump_of(const Json& json) {
  FlightDump dump;
  FlightLog& log = dump.log;
  log.rank = json.at("rank");
  dump.place = {json.at("host"), json.at("pid")};
  dump.why = json.at("why");
  const std::string thread = json.at("main_thread");
  if (thread.empty()) throw DataError("main_thread is empty");
  dump.main_thread = thread[0];
  log.taken_ns = json.at("taken_ns");
  log.last_activity_ns = from_ago(log, json.at("idle_s"));
  for (const Json& line : json.at("groups")) {
    FlightGroup& group = log.groups.emplace_back();
    group.name = line.at("name");
    group.world_ranks = line.at("ranks").get<std::vector<int>>();
    group.rank = line.at("rank");
    group.enqueued = line.at("enqueued");
    group.started = line.at("started");
    group.done = line.at("done");
    group.sent = line.at("sent").get<std::vector<uint64_t>>();
    const auto members = static_cast<int64_t>(group.world_ranks.size());
    if (group.sent.size() != group.world_ranks.size() || group.rank < 0 || group.rank >= members)
      throw DataError(fmt::format("group {} has {} ranks, but sends to {}, and this is rank {} of it", group.name,
                                  members, group.sent.size(), group.rank));
  }
  for (const Json& line : json.at("calls")) {
    FlightRecord& record = log.records.emplace_back();
    record.number = line.at("n");
    record.group = line.at("group_index");
    record.call.sequence = line.at("seq");
    record.peer = line.at("peer");
    record.sends = line.at("sends");
    if (record.peer >= 0) record.call.call = CommCall::transfer;
    record.state = parse_word<FlightState>(line.at("state").get<std::string>()).value_or(FlightState::none);
    record.enqueued_ns = from_ago(log, line.at("enqueued_ago"));
    record.started_ns = from_ago(log, line.at("started_ago"));
    record.done_ns = from_ago(log, line.at("done_ago"));
    dump.calls.push_back(line.at("call"));
    const int members = record.group < 0 || record.group >= static_cast<int>(log.groups.size())
                            ? -1
                            : static_cast<int>(log.groups[static_cast<size_t>(record.group)].world_ranks.size());
    if (record.peer < -1 || record.peer >= members)
      throw DataError(
          fmt::format("call {} is of group {}, peer {}, which there is not", record.number, record.group, record.peer));
  }
  return dump;
}

// The same group on another rank: among the groups with this name and these ranks, the one with the same number.
const FlightGroup* same_group(const FlightLog& mine, size_t index, const FlightLog& theirs) {
  const auto is_like = [&](const FlightGroup& group) {
    return group.name == mine.groups[index].name && group.world_ranks == mine.groups[index].world_ranks;
  };
  auto before = std::count_if(mine.groups.begin(), mine.groups.begin() + static_cast<int64_t>(index), is_like);
  for (const FlightGroup& group : theirs.groups)
    if (is_like(group) && before-- == 0) return &group;
  return nullptr;
}

// An open call, and the ranks that have not joined it.
struct Wait {
  int rank = 0;  // the waiting rank, in the world
  const FlightDump* dump = nullptr;
  size_t record = 0;
  std::vector<int> missing{};  // ranks in the world

  const FlightRecord& call() const { return dump->log.records[record]; }
  const FlightGroup& group() const { return dump->log.groups[static_cast<size_t>(call().group)]; }
  double seconds() const { return seconds_before(dump->log.taken_ns, call().started_ns); }
};

std::vector<Wait> find_waits(const FlightReport& report) {
  std::vector<Wait> waits;
  for (const auto& dump : report.dumps) {
    if (!dump) continue;
    for (size_t i = 0; i < dump->log.records.size(); ++i) {
      const FlightRecord& record = dump->log.records[i];
      if (record.state != FlightState::started || record.sends) continue;
      Wait wait{.rank = dump->log.rank, .dump = &*dump, .record = i};
      const FlightGroup& group = wait.group();
      for (size_t member = 0; member < group.world_ranks.size(); ++member) {
        const int other = group.world_ranks[member];
        if (static_cast<int>(member) == group.rank) continue;
        if (record.peer >= 0 && static_cast<int>(member) != record.peer) continue;
        const auto& theirs = report.dumps.at(static_cast<size_t>(other));
        const FlightGroup* same =
            theirs ? same_group(dump->log, static_cast<size_t>(record.group), theirs->log) : nullptr;
        const uint64_t there = !same              ? 0
                               : record.peer >= 0 ? same->sent[static_cast<size_t>(group.rank)]
                                                  : same->started;
        if (there <= record.call.sequence) wait.missing.push_back(other);
      }
      waits.push_back(std::move(wait));
    }
  }
  std::stable_sort(waits.begin(), waits.end(), [](const Wait& a, const Wait& b) { return a.seconds() > b.seconds(); });
  return waits;
}

std::string some_ranks(const std::vector<int>& ranks) {
  constexpr size_t kMost = 16;
  const std::vector<int> first(ranks.begin(), ranks.begin() + static_cast<int64_t>(std::min(kMost, ranks.size())));
  return fmt::format("{} {}{}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(first, ", "),
                     ranks.size() > kMost ? fmt::format(" and {} more", ranks.size() - kMost) : "");
}

std::string call_of(const Wait& wait) {
  if (wait.call().peer >= 0)
    return fmt::format("transfer {} of group '{}' to rank {}: {}", wait.call().call.sequence, wait.group().name,
                       wait.rank, wait.dump->calls[wait.record]);
  return fmt::format("call {} of group '{}' ({}): {}", wait.call().call.sequence, wait.group().name,
                     some_ranks(wait.group().world_ranks), wait.dump->calls[wait.record]);
}

}  // namespace

std::string flight_folder(const std::string& run_dir) { return run_dir + "/flight"; }
std::string flight_path(const std::string& run_dir, int rank) {
  return fmt::format("{}/rank-{}.json", flight_folder(run_dir), rank);
}

void start_flight_folder(const std::string& run_dir, const std::vector<RankPlace>& places) {
  const std::string folder = flight_folder(run_dir);
  empty_folder(folder);
  OutputFile file(folder + "/ranks.json");
  for (size_t rank = 0; rank < places.size(); ++rank)
    file.write(fmt::format("{} {}{}\n", rank == 0 ? "[" : ",",
                           Json{{"rank", rank}, {"host", places[rank].host}, {"pid", places[rank].pid}}.dump(),
                           rank + 1 == places.size() ? "]" : ""));
  file.commit();
}

void write_flight_dump(const std::string& run_dir, const FlightDump& dump) {
  const FlightLog& log = dump.log;
  OutputFile file(flight_path(run_dir, log.rank));
  file.write(
      fmt::format("{{\"rank\": {}, \"host\": {}, \"pid\": {}, \"taken_ns\": {}, \"idle_s\": {},\n\"why\": {}, "
                  "\"main_thread\": \"{}\",\n",
                  log.rank, json_text(dump.place.host), dump.place.pid, log.taken_ns,
                  ago(log, log.last_activity_ns).dump(), json_text(dump.why), dump.main_thread));
  file.write("\"groups\": [");
  for (size_t i = 0; i < log.groups.size(); ++i) {
    const FlightGroup& group = log.groups[i];
    const Json line = {{"name", group.name},         {"ranks", group.world_ranks}, {"rank", group.rank},
                       {"enqueued", group.enqueued}, {"started", group.started},   {"done", group.done},
                       {"sent", group.sent}};
    file.write((i == 0 ? "\n" : ",\n") + line.dump());
  }
  file.write("\n],\n\"calls\": [");
  for (size_t i = 0; i < log.records.size(); ++i) {
    const FlightRecord& record = log.records[i];
    const FlightGroup& group = log.groups[static_cast<size_t>(record.group)];
    const bool transfer = record.call.call == CommCall::transfer;
    const Json line = {{"n", record.number},
                       {"group", group.name},
                       {"group_index", record.group},
                       {"seq", record.call.sequence},
                       {"call", to_string(record)},
                       {"bytes", record.call.numel * size_of(record.call.dtype)},
                       {"peer", transfer ? record.peer : -1},
                       {"sends", record.sends},
                       {"state", word_of(record.state)},
                       {"enqueued_ago", ago(log, record.enqueued_ns)},
                       {"started_ago", ago(log, record.started_ns)},
                       {"done_ago", ago(log, record.done_ns)}};
    file.write((i == 0 ? "\n" : ",\n") + line.dump());
  }
  file.write("\n]}\n");
  file.commit();
}

std::string how_it_ended(const std::string& run_dir) {
  const std::string path = run_dir + "/outcome.json";
  if (!file_exists(path))
    return "there is no outcome.json: the run is still in progress, or was killed before a rank could write one";
  return read_json(path, [](const Json& outcome) {
    const std::string status = outcome.at("status");
    const std::string how = status == "done" ? "ended normally" : status == "stopped" ? "was stopped as asked" : status;
    const std::string what = outcome.at("what");
    return fmt::format("the run {} after step {}{}", how, outcome.at("step").get<int64_t>(),
                       what.empty() ? "" : ": " + what);
  });
}

FlightReport read_flight_folder(const std::string& run_dir) {
  FlightReport report;
  read_json(flight_folder(run_dir) + "/ranks.json", [&](const Json& places) {
    for (const Json& line : places) report.places.push_back({line.at("host"), line.at("pid")});
  });
  const int world = static_cast<int>(report.places.size());
  for (int rank = 0; rank < world; ++rank) {
    auto& dump = report.dumps.emplace_back();
    const std::string file = flight_path(run_dir, rank);
    if (!file_exists(file)) continue;
    dump = read_json(file, dump_of);
    for (const FlightGroup& group : dump->log.groups)
      for (const int member : group.world_ranks)
        if (dump->log.rank != rank || member < 0 || member >= world)
          throw DataError(fmt::format("{}: rank {} of {} does not belong in this file", file, member, world));
  }
  if (std::ranges::none_of(report.dumps, &std::optional<FlightDump>::has_value)) report.end = how_it_ended(run_dir);
  return report;
}

FlightVerdict find_culprit(const FlightReport& report) {
  const std::vector<Wait> waits = find_waits(report);
  std::set<int> waiting;
  for (const Wait& wait : waits)
    if (!wait.missing.empty() && (wait.call().peer < 0 || wait.dump->main_thread != 'R')) waiting.insert(wait.rank);
  // Silent ranks first, then ranks that are still working.
  for (const bool silent : {true, false})
    for (const Wait& wait : waits)
      for (const int rank : wait.missing) {
        const auto& dump = report.dumps[static_cast<size_t>(rank)];
        if (waiting.contains(rank) || dump.has_value() == silent) continue;
        const std::string sign =
            dump ? fmt::format("its last call ended {:.1f} s ago: it is computing, or waiting for something else",
                               seconds_before(dump->log.taken_ns, dump->log.last_activity_ns))
                 : "it gives no sign of life: stopped, or dead";
        return {rank, fmt::format("rank {} on {} did not join {}, in which rank {} has waited for {:.1f} s; {}", rank,
                                  report.places[static_cast<size_t>(rank)].host, call_of(wait), wait.rank,
                                  wait.seconds(), sign)};
      }
  for (const Wait& wait : waits)
    if (!wait.missing.empty()) {
      const int other = wait.missing.front();
      const auto blocked = std::find_if(waits.begin(), waits.end(),
                                        [&](const Wait& w) { return w.rank == other && !w.missing.empty(); });
      return {-1, fmt::format("ranks wait for each other: rank {} on {} did not join {}, in which rank {} waits; it "
                              "waits in {}",
                              other, report.places[static_cast<size_t>(other)].host, call_of(wait), wait.rank,
                              call_of(*blocked))};
    }
  if (!waits.empty())
    return {-1, fmt::format("all ranks have joined {}, but its data has not arrived at rank {} for {:.1f} s",
                            call_of(waits.front()), waits.front().rank, waits.front().seconds())};
  return {-1, "no rank waits in a call"};
}

std::string describe_flight(const FlightReport& report) {
  if (!report.end.empty()) return report.end + "; no rank wrote a flight dump\n";
  std::string text = find_culprit(report).what + "\n";
  for (size_t rank = 0; rank < report.dumps.size(); ++rank) {
    const auto& dump = report.dumps[rank];
    text += fmt::format("rank {} on {}: {}\n", rank, report.places[rank].host,
                        dump ? fmt::format("last active {:.1f} s before its dump; {}",
                                           seconds_before(dump->log.taken_ns, dump->log.last_activity_ns), dump->why)
                             : "wrote no dump");
  }
  for (const Wait& wait : find_waits(report))
    text += fmt::format("rank {} has waited for {:.1f} s in {}; {}\n", wait.rank, wait.seconds(), call_of(wait),
                        wait.missing.empty() ? "all have joined it" : "missing: " + some_ranks(wait.missing));
  return text;
}

}  // namespace trivet
