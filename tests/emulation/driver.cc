#include "tests/emulation/driver.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <queue>

#include "tests/emulation/grid.h"
#include "tests/emulation/runtime.h"

namespace trivet::emulation {

struct Monitor {
  std::mutex mutex;
  std::condition_variable strict_wait;
  std::vector<const Waiting*> waits;
  int running_callers = 0;
  std::atomic<int> running_channels = 0;  // those that have work and are not waiting
  std::atomic<uint64_t> changes = 0;

  void watch();
  bool stuck(bool& sure) const;
};

namespace {

Monitor& monitor() {
  static auto* const only = new Monitor;  // threads may outlive statics
  return *only;
}

thread_local bool is_channel = false;

struct Caller {
  Caller() {
    std::lock_guard lock(monitor().mutex);
    ++monitor().running_callers;
  }
  ~Caller() {
    std::lock_guard lock(monitor().mutex);
    --monitor().running_callers;
  }
};

}  // namespace

// REQUIRES: the mutex, so that no thread ends a wait.
bool Monitor::stuck(bool& sure) const {
  if (running_channels > 0) return false;
  sure = running_callers == 0;
  bool any = false;
  for (const Waiting* wait : waits) {
    any = any || wait->kind_ == Waiting::strict;
    sure = sure && wait->kind_ != Waiting::memory;
    if (wait->over_()) return false;
  }
  return any;
}

void Monitor::watch() {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex);
  uint64_t seen = ~uint64_t{0};
  Clock::time_point since;
  for (;;) {
    strict_wait.wait(lock, [&] {
      return std::ranges::any_of(waits, [](const Waiting* wait) { return wait->kind_ == Waiting::strict; });
    });
    bool sure = false;
    const uint64_t now = changes;
    if (!stuck(sure)) {
      seen = ~uint64_t{0};
    } else if (seen != now) {
      seen = now;
      since = Clock::now();
    }
    if (seen == now && Clock::now() - since >= std::chrono::milliseconds(driver().patience_ms * (sure ? 1 : 12))) {
      std::string text = "a deadlock, as a driver may have it:";
      for (const Waiting* wait : waits) text += "\n  " + wait->what_;
      broken(text);
    }
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    lock.lock();
  }
}

Waiting::Waiting(Kind kind, std::string what, std::function<bool()> over)
    : kind_(kind), what_(std::move(what)), over_(std::move(over)), in_channel_(is_channel) {
  if (!in_channel_) add_caller();
  Monitor& m = monitor();
  std::lock_guard lock(m.mutex);
  ++m.changes;
  m.waits.push_back(this);
  if (in_channel_) --m.running_channels;
  else --m.running_callers;
  if (kind_ != strict) return;
  static std::once_flag once;
  std::call_once(once, [&m] { std::thread([&m] { m.watch(); }).detach(); });
  m.strict_wait.notify_one();
}

Waiting::~Waiting() {
  Monitor& m = monitor();
  std::lock_guard lock(m.mutex);
  ++m.changes;
  std::erase(m.waits, this);
  if (in_channel_) ++m.running_channels;
  else ++m.running_callers;
}

void DriverLock::lock() {
  const auto self = std::this_thread::get_id();
  const auto is_free = [&] { return owner_ == std::thread::id() || owner_ == self; };
  for (;;) {
    wait_until(mutex_, changed_, Waiting::plain, "a call waits for the driver's lock", is_free);
    std::lock_guard lock(mutex_);
    if (!is_free()) continue;
    owner_ = self;
    return;
  }
}
void DriverLock::unlock() {
  {
    std::lock_guard lock(mutex_);
    owner_ = {};
  }
  changed_.notify_all();
}

void serve_channel() { is_channel = true; }
bool serves_channel() { return is_channel; }
void add_caller() {
  if (is_channel) return;
  thread_local Caller of_this_thread;
}
void channel_is_busy(bool busy) {
  ++monitor().changes;
  monitor().running_channels += busy ? 1 : -1;
}

Driver::Driver() {
  const char* const asked = std::getenv("TRIVET_EMULATED_DRIVER");
  if (asked && std::strcmp(asked, "strict") != 0 && std::strcmp(asked, "lenient") != 0)
    broken(std::string("TRIVET_EMULATED_DRIVER: found ") + asked + ", expected strict or lenient");
  strict = !asked || std::strcmp(asked, "strict") == 0;
  const char* const loading = std::getenv("CUDA_MODULE_LOADING");
  lazy = !loading || std::strcmp(loading, "EAGER") != 0;
}
Driver& driver() {
  static auto* const only = new Driver;
  return *only;
}

// ---- multiprocessors

namespace {

std::mutex multiprocessors_mutex;
std::array<std::map<std::string, int>, 64> taken;  // [device], by holder

int free_of(int device) {  // REQUIRES: the mutex
  int free = kMultiprocessors;
  for (const auto& [holder, count] : taken[static_cast<size_t>(device)]) free -= count;
  return free;
}

}  // namespace

int free_multiprocessors(int device) {
  std::lock_guard lock(multiprocessors_mutex);
  return free_of(device);
}
bool take_multiprocessors(int device, int count, const std::string& holder) {
  std::lock_guard lock(multiprocessors_mutex);
  if (free_of(device) < count) return false;
  taken[static_cast<size_t>(device)][holder] += count;
  return true;
}
void give_multiprocessors(int device, int count, const std::string& holder) {
  std::lock_guard lock(multiprocessors_mutex);
  auto& holders = taken[static_cast<size_t>(device)];
  if ((holders[holder] -= count) == 0) holders.erase(holder);
}
std::string holders_of_multiprocessors(int device) {
  std::lock_guard lock(multiprocessors_mutex);
  std::string text;
  for (const auto& [holder, count] : taken[static_cast<size_t>(device)])
    text += (text.empty() ? "" : ", ") + holder + " " + std::to_string(count);
  return text;
}

int64_t makespan(const std::vector<int64_t>& pieces, int multiprocessors) {
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> ends;
  int64_t last = 0;
  for (const int64_t piece : pieces) {
    int64_t begin = 0;
    if (ends.size() >= static_cast<size_t>(multiprocessors)) {
      begin = ends.top();
      ends.pop();
    }
    ends.push(begin + piece);
    last = std::max(last, begin + piece);
  }
  return last;
}

}  // namespace trivet::emulation
