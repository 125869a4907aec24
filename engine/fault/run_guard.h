// RunGuard: failure detection around a run, on every rank: the run folder's lock, the check that all ranks run the same
// program and configuration on the same data, flight recorder, watchdog, fault injection, outcome.json.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/fault/inject.h"
#include "engine/fault/run_lock.h"
#include "engine/fault/watchdog.h"

namespace trivet {

struct Config;

// A setting that must be equal on all ranks, as text.
struct Shared {
  std::string what, text;
  bool is_data = false;  // false: configuration. Messages show the text only for data.
};

class RunGuard {
 public:
  // Collective over `world`. `config` is resolved; `inputs` are its sources. Creates train.run_dir. Throws ConfigError
  // if another run uses it, IoError, and the errors of check_same_everywhere().
  RunGuard(const Config& config, const std::vector<Fault>& faults, Communicator& world,
           const std::vector<Shared>& inputs = {});

  // Runs rank_main on a world with a flight recorder and returns its exit code. On an error, writes the outcome and
  // rethrows; a hang becomes a TimeoutError naming the culprit.
  int run(const std::function<int(Communicator& world)>& rank_main);

  // Wraps `exchange`, which moves device memory on its own streams, in a flight recorder.
  std::unique_ptr<Communicator> watch(Communicator& exchange) {
    return with_flight_recorder(exchange, recorder_, faults_.none() ? nullptr : &faults_);
  }

  FaultInjector& faults() { return faults_; }
  void set_steps_done(int64_t steps) { steps_done_ = steps; }
  // The previous holder of a lock that was taken over; empty: none.
  std::string lock_taken_from() const { return lock_ ? lock_->taken_from() : ""; }
  const RunDirectory& folder() const { return *folder_; }

 private:
  [[noreturn]] void rank_failed();
  // The folder that contains outcome.json and flight/: train.run_dir, or a subfolder if the run only evaluates.
  std::string records_;
  Communicator& world_;
  FaultInjector faults_;
  std::optional<RunLock> lock_;         // rank 0
  std::optional<RunDirectory> folder_;  // once rank 0 has created it
  std::vector<RankPlace> places_;
  std::atomic<int64_t> steps_done_ = 0;
  FlightRecorder recorder_;
  std::unique_ptr<Communicator> watched_;
  std::optional<Watchdog> watchdog_;
};

// Compares in order and stops at the first difference, so the lists may differ in length beyond it. At a difference,
// throws ConfigError (DataError for data) on all ranks, listing the ranks that differ. Collective.
void check_same_everywhere(const std::vector<Shared>& shared, const std::vector<RankPlace>& places,
                           Communicator& world);

}  // namespace trivet
