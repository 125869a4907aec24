// Flight dumps: the content of each rank's flight recorder when a run failed, and the rank that caused the failure.
// Read by `trivet flight RUN_DIR` and by the watchdog that fires first.
//
//   RUN_DIR/flight/ranks.json    host and process of each rank; written by rank 0 at the start
//   RUN_DIR/flight/fired         tells the ranks to write their dumps
//   RUN_DIR/flight/rank-K.json   one line per group and per call
//
// A run that ended normally has no dumps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/flight_recorder.h"

namespace trivet {

// The host and process of a rank.
struct RankPlace {
  std::string host;
  int64_t pid = 0;
};

struct FlightDump {
  RankPlace place;
  std::string why;  // why the dump was written
  // State of the rank's main thread in /proc: R running, S sleeping, T stopped; ?: unknown. A running rank is not
  // waiting, even if it has posted receives early.
  char main_thread = '?';
  FlightLog log{};                   // if read from a file, `calls` replaces the signatures' data types and operations
  std::vector<std::string> calls{};  // [record], as text
};

std::string flight_folder(const std::string& run_dir);
std::string flight_path(const std::string& run_dir, int rank);

// Called by rank 0 before a barrier: creates an empty folder with ranks.json. Throws IoError.
void start_flight_folder(const std::string& run_dir, const std::vector<RankPlace>& places);
// Writes the calls from `dump.log`; `dump.calls` is not used.
void write_flight_dump(const std::string& run_dir, const FlightDump& dump);

struct FlightReport {
  std::vector<RankPlace> places;                 // [rank]
  std::vector<std::optional<FlightDump>> dumps;  // [rank]; empty: no dump
  std::string end{};                             // if there are no dumps: how the run ended, from outcome.json
};
// Describes the end of a run from its outcome.json (outcome.h), or reports that there is none. Throws DataError.
std::string how_it_ended(const std::string& run_dir);
// Throws DataError if a file is invalid, IoError if there is no such folder.
FlightReport read_flight_folder(const std::string& run_dir);

// The rank that the others wait for. Among the ranks missing from open calls, the culprit is one that is not waiting
// itself: it wrote no dump (stopped or dead), or is busy outside communication.
struct FlightVerdict {
  int rank = -1;     // -1: unknown, for example if ranks wait for each other
  std::string what;  // one line
};
FlightVerdict find_culprit(const FlightReport& report);

// Human-readable: the verdict, one line per rank, and one line per open call with the ranks missing from it. If no rank
// wrote a dump, how the run ended.
std::string describe_flight(const FlightReport& report);

}  // namespace trivet
