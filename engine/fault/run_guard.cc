#include "engine/fault/run_guard.h"

#include <array>
#include <fmt/format.h>

#include "base/content_hash.h"
#include "base/statistics.h"
#include "engine/config/load.h"
#include "parallel/comm/call.h"
#include "parallel/comm/host_world.h"

namespace trivet {
namespace {

// The first half of a content_hash().
int64_t number_of(const std::string& hash) {
  return static_cast<int64_t>(std::stoull(hash.substr(0, 16), nullptr, 16));
}

}  // namespace

void check_same_everywhere(const std::string& text, const std::vector<RankPlace>& places, Communicator& world) {
  std::array<int64_t, 2> mine{};
  // Ranks that are threads share the program.
  const bool processes = places.size() > 1 && places[0].pid != places[1].pid;
  if (processes) mine[0] = number_of(content_hash(InputFile("/proc/self/exe")));
  mine[1] = number_of(content_hash(text));
  const std::vector<std::array<int64_t, 2>> all = HostWorld(world).gather(mine);
  for (size_t what = 0; what < mine.size(); ++what) {
    std::vector<int64_t> hashes;
    for (const auto& of_rank : all) hashes.push_back(of_rank[what]);
    const auto usual = majority_of<int64_t>(hashes);
    const auto count = static_cast<int64_t>(all.size()) - usual.votes;
    if (count == 0) continue;
    std::string odd;
    int told = 0;
    for (size_t rank = 0; rank < all.size(); ++rank)
      if (hashes[rank] != usual.value && ++told <= 16)
        odd += fmt::format("{}rank {} on {}", odd.empty() ? "" : ", ", rank, places[rank].host);
    throw ConfigError(fmt::format(
        "the ranks do not run the same {}: {}{} {} from the other {}", what == 0 ? "program" : "configuration", odd,
        count > 16 ? fmt::format(" and {} more", count - 16) : "", count == 1 ? "differs" : "differ", usual.votes));
  }
}

RunGuard::RunGuard(const Config& config, const std::vector<Fault>& faults, Communicator& world)
    : records_(config.train.run_dir + (config.train.skip_train ? "/evaluation" : "")),
      world_(world),
      faults_(faults, world.rank(), world.size()),
      recorder_(world.rank()) {
  places_ = gather_places(world);
  check_same_everywhere(to_yaml(config), places_, world);
  if (world.rank() == 0) {
    try {
      Disk().make_directories(config.train.run_dir);
    } catch (const IoError& error) {
      throw IoError(fmt::format("train.run_dir {}", error.what()));
    }
    lock_.emplace(config.train.run_dir);
    Disk().make_directories(records_);
    clear_outcome(records_);
    start_flight_folder(records_, places_);
  }
  folder_.emplace(config.train.run_dir, "train.run_dir", std::vector<std::string>{"lock", "config.resolved.yaml"},
                  HostWorld(world).broadcast(lock_ ? lock_->text() : ""));
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
    // After this no rank waits for another.
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
    if (first >= 0 && first != world_.rank()) {  // a consequence
      watchdog_->dump(failure.what());
      throw;
    }
    const auto* numerics = dynamic_cast<const NumericsError*>(&failure);
    const bool unknown = dynamic_cast<const MismatchError*>(&failure) != nullptr;
    const int rank = numerics ? numerics->rank : unknown ? -1 : world_.rank();
    // Each failing rank tries, as the launcher may end another first. The first outcome counts.
    watchdog_->record(
        {.status = "failed", .exit_code = exit_code_of(failure), .root_cause_rank = rank, .what = failure.what()});
    watchdog_->dump(failure.what());
    throw;
  }
}

}  // namespace trivet
