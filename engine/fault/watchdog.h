// Watchdog: a thread on each rank that ends a run that cannot end itself.
//
//   a call stays open longer than the timeout    a rank hangs: each responsive rank writes its dump; the first to
//                                                notice names the culprit, writes outcome.json and ends the job
//                                                (124)
//   a rank on this host has died                 the same; its launcher ends the job too, and reports the signal
//   this process gets a fatal signal             flight dump and outcome.json before the process ends (crash.h)
//
// It polls a few times a second. Only time during which the process runs counts (monotonic clock), so a job that was
// suspended as a whole continues. One rank may work (write a file) for up to the timeout while the others wait.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/fault/crash.h"
#include "engine/fault/flight_dump.h"
#include "engine/fault/outcome.h"
#include "parallel/comm/comm.h"

namespace trivet {

struct WatchdogOptions {
  double timeout_s = 600;         // 0: hangs are not detected
  double grace_s = 5;             // for the rank to end after world.abort(); then _exit()
  std::string run_dir;            // contains the flight folder (start_flight_folder)
  std::vector<RankPlace> places;  // [rank]
  std::function<void()> touch{};  // called periodically, on the watchdog's thread; empty: nothing
  // True if run_dir still belongs to this run; if false, no file in it is read or written. Any thread; empty: always.
  std::function<bool()> folder_is_ours{};
};

class Watchdog {
 public:
  // Created by the rank's main thread. `recorder`, `world` and `steps_done` must outlive it.
  Watchdog(const FlightRecorder& recorder, Communicator& world, const std::atomic<int64_t>& steps_done,
           WatchdogOptions options);
  ~Watchdog();  // to be called once the rank has ended
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  struct Fired {
    int exit_code = 0;  // 124: a hang; 0: it has not fired
    std::string what;
  };
  Fired fired() const;

  // Writes this rank's flight dump, and makes the other ranks write theirs. For a main thread that ends with an error.
  void dump(const std::string& why);
  // Writes outcome.json if there is none, with the completed steps and the host of the root-cause rank.
  void record(Outcome outcome);

 private:
  void watch();
  void look();
  void serve_crash(int signal);
  void look_for_hang(int64_t elapsed_ns);
  void look_for_dead_ranks();
  void report_hang();
  void follow();
  void end_rank(int exit_code, const std::string& what);

  bool folder_is_ours() const { return !options_.folder_is_ours || options_.folder_is_ours(); }
  bool claim();  // true for the first rank, which reports
  bool write_dump(const std::string& why);
  bool wait_for_stop(double seconds);
  const RankPlace& place() const { return options_.places[static_cast<size_t>(rank_)]; }

  const FlightRecorder& recorder_;
  Communicator& world_;
  const std::atomic<int64_t>& steps_done_;
  const WatchdogOptions options_;
  const int rank_;
  const int64_t tick_ns_;
  CrashWatch crash_;
  std::vector<int> neighbours_;  // ranks that are other processes on this host

  // Used by the watchdog thread only.
  int64_t last_look_ns_ = 0;
  uint64_t watched_call_ = UINT64_MAX;
  int64_t watched_ns_ = 0;  // how long watched_call_ has been open
  int64_t activity_ns_ = 0, idle_ns_ = 0;
  bool over_ = false;  // this watchdog has reported

  std::mutex dump_mutex_;  // the watchdog thread and the rank's main thread write the same file
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;   // guarded by mutex_
  Fired fired_;         // also guarded by mutex_
  std::thread thread_;  // declared last
};

// The places of all ranks, on all ranks. Collective over `world`.
std::vector<RankPlace> gather_places(Communicator& world);

}  // namespace trivet
