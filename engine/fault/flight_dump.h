// Flight dumps: RUN_DIR/flight/rank-K.json, what rank K's flight recorder held when the run came to grief, and who was
// to blame. `trivet flight RUN_DIR` reads them; so does the watchdog that fires first.
//
//   RUN_DIR/flight/ranks.json    who the ranks are: host and process of each; written by rank 0 at the start
//   RUN_DIR/flight/fired         there is a dump to be made: the ranks that find it write theirs
//   RUN_DIR/flight/rank-K.json   one line a group and a call, for people as much as for programs
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/flight_recorder.h"

namespace trivet {

// Where a rank runs.
struct RankPlace {
  std::string host;
  int64_t pid = 0;
};

struct FlightDump {
  RankPlace place;
  std::string why;  // it was written
  // Of the rank's main thread, as the kernel has it: R runs, S sleeps, T is stopped; ?: unknown. A rank that runs waits
  // for nobody, even where it has asked for data ahead of time.
  char main_thread = '?';
  FlightLog log{};  // read from a file: records have `calls` instead of their signature's data type and operation
  std::vector<std::string> calls{};  // [record] as text
};

std::string flight_folder(const std::string& run_dir);
std::string flight_path(const std::string& run_dir, int rank);

// Rank 0, before the others go on: an empty folder with ranks.json. Throws IoError.
void start_flight_folder(const std::string& run_dir, const std::vector<RankPlace>& places);
// `dump.calls` are not looked at: the records say more.
void write_flight_dump(const std::string& run_dir, const FlightDump& dump);

struct FlightReport {
  std::vector<RankPlace> places;                 // [rank]
  std::vector<std::optional<FlightDump>> dumps;  // [rank]; empty: it wrote none
};
// Throws DataError where a file is not one of these, IoError where there is no such folder.
FlightReport read_flight_folder(const std::string& run_dir);

// Who did not do what the others waited for. Of the ranks that are waited for, the culprit is one that itself waits for
// nobody: it has written no dump (it was stopped, or is dead), or it is at work outside of communication.
struct FlightVerdict {
  int rank = -1;     // -1: nobody can be named, as where ranks wait for each other
  std::string what;  // one line
};
FlightVerdict find_culprit(const FlightReport& report);

// The verdict, then a line a group that has an open call, with who is in it and who is not, for people.
std::string describe_flight(const FlightReport& report);

}  // namespace trivet
