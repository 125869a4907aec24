#include "engine/fault/watchdog.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/files.h"
#include "base/host.h"
#include "base/sink_queue.h"
#include "parallel/comm/host_world.h"

namespace trivet {
namespace {

constexpr int kHungExit = 124;
constexpr int64_t kTickNs = 250'000'000;
constexpr double kDumpsWait = 2;  // seconds to wait for the other ranks' dumps, in addition to their polling interval

bool process_exists(int64_t pid) { return kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH; }

// From /proc. A running thread may be caught in a short sleep, so this reads up to three times.
char state_of_thread(pid_t thread) {
  char state = '?';
  for (int look = 0; look < 3 && state != 'R'; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    state = process_state(fmt::format("/proc/self/task/{}", thread)).state;
  }
  return state;
}

}  // namespace

Watchdog::Watchdog(const FlightRecorder& recorder, Communicator& world, const std::atomic<int64_t>& steps_done,
                   WatchdogOptions options)
    : recorder_(recorder),
      world_(world),
      steps_done_(steps_done),
      options_(std::move(options)),
      rank_(world.rank()),
      tick_ns_(options_.timeout_s > 0
                   ? std::clamp(static_cast<int64_t>(options_.timeout_s * 1e8), int64_t{20'000'000}, kTickNs)
                   : kTickNs),
      last_look_ns_(now_ns()) {
  for (int rank = 0; rank < world.size(); ++rank) {
    const RankPlace& other = options_.places[static_cast<size_t>(rank)];
    // Processes that are invisible from the start, because they run in another container, are not watched.
    if (other.host == place().host && other.pid != place().pid && process_exists(other.pid))
      neighbours_.push_back(rank);
  }
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Watchdog::Fired Watchdog::fired() const {
  std::lock_guard lock(mutex_);
  return fired_;
}

void Watchdog::dump(const std::string& why) {
  claim();
  write_dump(why);
}

void Watchdog::record(Outcome outcome) {
  outcome.step = steps_done_;
  if (outcome.root_cause_rank >= 0) outcome.host = options_.places[static_cast<size_t>(outcome.root_cause_rank)].host;
  if (folder_is_ours()) write_outcome(options_.run_dir, outcome);
}

// ---- the thread

void Watchdog::watch() {
  while (!wait_for_stop(static_cast<double>(tick_ns_) * 1e-9)) {
    if (const int signal = crash_.signal()) serve_crash(signal);
    else if (!over_) look();
    if (options_.touch) options_.touch();
  }
}

void Watchdog::look() {
  const int64_t now = now_ns();
  // During a longer gap this process was not running.
  const int64_t elapsed = std::min(now - last_look_ns_, 4 * tick_ns_);
  last_look_ns_ = now;
  if (options_.timeout_s > 0) look_for_hang(elapsed);
  if (!over_) look_for_dead_ranks();
}

void Watchdog::serve_crash(int signal) {
  const bool threads = options_.places.size() > 1 && options_.places[0].pid == options_.places[1].pid;
  const bool mine = !threads || crash_.in_my_thread();
  const char* const name = sigabbrev_np(signal);
  const std::string what =
      mine ? fmt::format("rank {} on {} has died of signal {} (SIG{}) after step {}", rank_, place().host, signal, name,
                         steps_done_.load())
           : fmt::format("the process of rank {} has died of signal {} (SIG{})", rank_, signal, name);
  if (mine) {
    claim();
    write_stderr("[rank " + std::to_string(rank_) + "] " + what + "\n");
    record({.status = "died", .exit_code = 128 + signal, .root_cause_rank = rank_, .what = what});
  }
  write_dump(what);
  // A stream thread of an unknown rank crashed, or the signal is a request.
  if (!mine && rank_ == 0 && !wait_for_stop(0.2))
    record({.status = "died", .exit_code = 128 + signal, .host = place().host, .what = what});
  over_ = true;
  crash_.served();
}

void Watchdog::look_for_hang(int64_t elapsed_ns) {
  const auto open = recorder_.oldest_started();
  if (open && open->number == watched_call_) {
    watched_ns_ += elapsed_ns;
  } else {
    watched_call_ = open ? open->number : UINT64_MAX;
    watched_ns_ = 0;
  }
  const int64_t activity = recorder_.last_activity_ns();
  idle_ns_ = activity == activity_ns_ ? idle_ns_ + elapsed_ns : 0;
  activity_ns_ = activity;

  const auto timeout_ns = static_cast<int64_t>(options_.timeout_s * 1e9);
  if (watched_ns_ >= timeout_ns) return report_hang();
  // A rank that has been idle for a long time checks whether another rank has reported.
  if (idle_ns_ >= timeout_ns / 2 && file_exists(flight_folder(options_.run_dir) + "/fired") && folder_is_ours())
    follow();
}

void Watchdog::report_hang() {
  const bool first = claim();
  write_dump(fmt::format("a call has been open for {:.1f} s (comm.timeout_s: {})",
                         static_cast<double>(watched_ns_) * 1e-9, options_.timeout_s));
  if (!first) return follow();

  const int64_t deadline = now_ns() + static_cast<int64_t>(kDumpsWait * 1e9) + 2 * kTickNs;
  const auto all_dumped = [&] {
    for (size_t rank = 0; rank < options_.places.size(); ++rank)
      if (!file_exists(flight_path(options_.run_dir, static_cast<int>(rank)))) return false;
    return true;
  };
  while (!all_dumped() && now_ns() < deadline)
    if (wait_for_stop(0.05)) return;  // the rank ended after all

  FlightVerdict verdict;
  try {
    verdict = find_culprit(read_flight_folder(options_.run_dir));
  } catch (const std::exception& error) {
    verdict.what = fmt::format("rank {} on {} waits in a call; the flight dumps cannot be read: {}", rank_,
                               place().host, error.what());
  }
  const std::string what =
      fmt::format("no progress for {:.1f} s: {}{}", options_.timeout_s, verdict.what, output_stall());
  record({.status = "hung", .exit_code = kHungExit, .root_cause_rank = verdict.rank, .what = what});
  end_rank(kHungExit, what);
}

void Watchdog::look_for_dead_ranks() {
  for (const int rank : neighbours_) {
    const RankPlace& other = options_.places[static_cast<size_t>(rank)];
    if (process_exists(other.pid)) continue;
    const std::string what = fmt::format("rank {} on {} (process {}) has died after step {}", rank, other.host,
                                         other.pid, steps_done_.load());
    const bool first = claim();
    write_dump(what);
    if (!first) return follow();
    // A rank killed by a catchable signal leaves an outcome (serve_crash), so this was SIGKILL or similarly sudden.
    record({.status = "died", .exit_code = 128 + SIGKILL, .root_cause_rank = rank, .what = what});
    return end_rank(Error("").exit_code(), what);
  }
}

// Another rank reports, and will end the job.
void Watchdog::follow() {
  over_ = true;
  write_dump("another rank has reported the end of the run");
  if (!wait_for_stop(4 * options_.grace_s)) {
    write_stderr(fmt::format("[rank {}] the run has ended, but this process is still running\n", rank_));
    _exit(kHungExit);
  }
}

void Watchdog::end_rank(int exit_code, const std::string& what) {
  over_ = true;
  {
    std::lock_guard lock(mutex_);
    fired_ = {exit_code, what};
  }
  world_.abort(what);
  if (wait_for_stop(options_.grace_s)) return;
  // Its main thread is not in a call, or does not return from it.
  write_stderr(fmt::format("[rank {}] {}\n", rank_, what));
  _exit(exit_code);
}

bool Watchdog::claim() {
  if (!folder_is_ours()) return true;  // as if there were no flight folder
  const std::string path = flight_folder(options_.run_dir) + "/fired";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd >= 0) close(fd);
  return fd >= 0 || errno != EEXIST;  // if there is no folder, every rank reports
}

bool Watchdog::write_dump(const std::string& why) {
  if (!folder_is_ours()) return false;
  std::lock_guard lock(dump_mutex_);
  if (file_exists(flight_path(options_.run_dir, rank_))) return true;  // the first dump counts
  try {
    write_flight_dump(options_.run_dir, {.place = place(),
                                         .why = why + output_stall(),
                                         .main_thread = state_of_thread(crash_.thread()),
                                         .log = recorder_.log()});
    return true;
  } catch (const std::exception& error) {
    write_stderr(fmt::format("[rank {}] no flight dump: {}\n", rank_, error.what()));
    return false;
  }
}

bool Watchdog::wait_for_stop(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return stop_; });
}

std::vector<RankPlace> gather_places(Communicator& world) {
  struct Card {
    std::array<char, 248> host{};
    int64_t pid = 0;
  };
  Card mine{.pid = getpid()};
  host_name().copy(mine.host.data(), mine.host.size() - 1);
  std::vector<RankPlace> places;
  for (const Card& card : HostWorld(world).gather(mine)) places.push_back({card.host.data(), card.pid});
  return places;
}

}  // namespace trivet
