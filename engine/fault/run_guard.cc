#include "engine/fault/run_guard.h"

#include <algorithm>
#include <fmt/format.h>

#include "base/content_hash.h"
#include "base/sink_queue.h"
#include "base/statistics.h"
#include "engine/config/load.h"
#include "parallel/comm/call.h"
#include "parallel/comm/host_world.h"

namespace trivet {

void check_same_everywhere(const std::vector<Shared>& shared, const std::vector<RankPlace>& places,
                           Communicator& world) {
  HostWorld host(world);
  for (const auto& [what, text, is_data] : shared) {
    // The first 64 bits of the hash.
    const auto mine = static_cast<int64_t>(std::stoull(content_hash(text).substr(0, 16), nullptr, 16));
    const std::vector<int64_t> hashes = host.gather(mine);
    auto usual = majority_of<int64_t>(hashes);
    if (std::ranges::count(hashes, hashes[0]) == usual.votes) usual.value = hashes[0];
    const auto count = static_cast<int64_t>(hashes.size()) - usual.votes;
    if (count == 0) continue;
    std::string odd;
    int told = 0;
    for (size_t rank = 0; rank < hashes.size(); ++rank)
      if (hashes[rank] != usual.value && ++told <= 16)
        odd += fmt::format("{}rank {} on {}", odd.empty() ? "" : ", ", rank, places[rank].host);
    const std::string message = fmt::format(
        "the ranks do not {} the same {}: {}{} {} from the other {}", is_data ? "have" : "run", what, odd,
        count > 16 ? fmt::format(" and {} more", count - 16) : "", count == 1 ? "differs" : "differ", usual.votes);
    if (!is_data) throw ConfigError(message);
    const auto found = host.first_text(mine != usual.value ? text : ""),
               expected = host.first_text(mine == usual.value ? text : "");
    throw DataError(
        fmt::format("{}; rank {} found {}, expected {}: copy it to all hosts again, or give a path "
                    "that they share",
                    message, found.rank, found.text, expected.text));
  }
}

RunGuard::RunGuard(const Config& config, const std::vector<Fault>& faults, Communicator& world,
                   const std::vector<Shared>& inputs)
    : records_(config.train.run_dir + (config.train.skip_train ? "/evaluation" : "")),
      world_(world),
      faults_(faults, world.rank(), world.size()),
      recorder_(world.rank()) {
  places_ = gather_places(world);
  std::vector<Shared> shared = inputs;
  // Ranks that are threads of one process run the same program.
  const bool processes = places_.size() > 1 && (places_[0].pid != places_[1].pid || places_[0].host != places_[1].host);
  shared.insert(shared.begin(), {"program", processes ? content_hash(InputFile("/proc/self/exe")) : ""});
  shared.push_back({"configuration", to_yaml(config)});
  check_same_everywhere(shared, places_, world);
  if (world.rank() == 0) {
    try {
      Disk().make_directories(config.train.run_dir);
    } catch (const IoError& error) {
      throw IoError(fmt::format("train.run_dir {}", error.what()));
    }
    lock_.emplace(config.train.run_dir);
    start_log(config.train.run_dir + "/log");
    Disk().make_directories(records_);
    clear_outcome(records_);
    start_flight_folder(records_, places_);
  }
  folder_.emplace(config.train.run_dir, "train.run_dir", std::vector<std::string>{"lock", "config.resolved.yaml"},
                  HostWorld(world).broadcast(lock_ ? lock_->text() : ""), lock_.has_value());
  watched_ = with_flight_recorder(world, recorder_, faults_.none() ? nullptr : &faults_);
  watchdog_.emplace(recorder_, world, steps_done_,
                    WatchdogOptions{.timeout_s = config.comm.timeout_s,
                                    .run_dir = records_,
                                    .places = places_,
                                    .touch =
                                        [this] {
                                          if (lock_) lock_->touch();
                                        },
                                    .folder_is_ours = [this] { return folder_->problem().empty(); }});
}

int RunGuard::run(const std::function<int(Communicator& world)>& rank_main) {
  int exit_code = 0;
  try {
    exit_code = rank_main(*watched_);
    // After this barrier no rank waits for another.
    watched_->barrier();
  } catch (...) {
    rank_failed();
  }
  if (world_.rank() == 0) watchdog_->record({.status = exit_code == 0 ? "done" : "stopped", .exit_code = exit_code});
  watchdog_.reset();
  return exit_code;
}

void RunGuard::rank_failed() {
  const Watchdog::Fired fired = watchdog_->fired();
  if (fired.exit_code == TimeoutError("").exit_code()) throw TimeoutError(fired.what);
  if (fired.exit_code != 0) throw Error(fired.what);
  try {
    throw;
  } catch (const std::exception& failure) {
    const int first = world_.failure().rank;
    if (first >= 0 && first != world_.rank()) {  // a consequence of another rank's failure
      watchdog_->dump(failure.what());
      throw;
    }
    const auto* numerics = dynamic_cast<const NumericsError*>(&failure);
    const bool unknown = dynamic_cast<const MismatchError*>(&failure) != nullptr;
    const int rank = numerics ? numerics->rank : unknown ? -1 : world_.rank();
    // Every failing rank tries, because the launcher may kill any of them first. The first outcome counts.
    watchdog_->record(
        {.status = "failed", .exit_code = exit_code_of(failure), .root_cause_rank = rank, .what = failure.what()});
    watchdog_->dump(failure.what());
    throw;
  }
}

}  // namespace trivet
