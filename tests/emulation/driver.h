// The strict driver (TRIVET_EMULATED_DRIVER=strict, the default; `lenient` disables it): waits that a driver and a GPU
// may impose on a program beyond those on its streams and events.
//
//   1. The first use of a kernel, or of a cuBLASLt algorithm, waits for all work on the device, while holding
//      the context's lock, which every launch and allocation takes (unless CUDA_MODULE_LOADING=EAGER).
//   2. The streams of a device share CUDA_DEVICE_MAX_CONNECTIONS channels (8 by default, at most 32) of 1,024 entries.
//      A channel's entries run one after another. A full channel blocks its caller, which holds the process's launch
//      lock.
//   3. A device has 132 multiprocessors. Before it starts, an NCCL operation takes as many as its communicator has
//      CTAs, and holds them until it finishes. Other kernels end on their own and so only delay the operation;
//      Driver::grid_time measures how long they take on the remaining multiprocessors.
//   4. cudaHostAlloc and stream creation wait for running work, including NCCL's, and hold the context's lock.
//   5. A device's host functions run one at a time.
//
// A monitor ends the process if these waits never end: when the head of every channel and every thread that has called
// the driver wait for each other. Threads unknown to the driver may still help, so the state must last for
// Driver::patience, or for 12 times as long if a calling thread is busy elsewhere or a stream waits for a word in
// memory.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace trivet::emulation {

// Registers this thread's wait during its lifetime. The monitor calls `over`, which takes the locks that it needs; so
// the owner of a Waiting must not hold any of these locks while constructing or destroying the Waiting.
class Waiting {
 public:
  enum Kind : uint8_t {
    plain,
    memory,  // any thread can end it
    strict   // a wait that only the strict driver imposes
  };
  Waiting(Kind kind, std::string what, std::function<bool()> over);
  ~Waiting();
  Waiting(const Waiting&) = delete;

 private:
  friend struct Monitor;
  const Kind kind_;
  const std::string what_;
  const std::function<bool()> over_;
  const bool in_channel_;
};

template <class Condition>
void wait_until(std::mutex& mutex, std::condition_variable& changed, Waiting::Kind kind, const std::string& what,
                const Condition& condition) {
  {
    std::lock_guard lock(mutex);
    if (condition()) return;
  }
  const Waiting waiting(kind, what, [&] {
    std::lock_guard lock(mutex);
    return condition();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, condition);
}

// A driver lock. The monitor knows which threads wait for it.
class DriverLock {
 public:
  void lock();
  void unlock();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread::id owner_;
};

// Marks this thread as serving a channel; other threads count as the driver's callers.
void serve_channel();
bool serves_channel();
void add_caller();
// Reports that a channel has work again, or has none left.
void channel_is_busy(bool busy);

// ---- multiprocessors

inline constexpr int kMultiprocessors = 132;
bool take_multiprocessors(int device, int count, const std::string& holder);  // false: too few are free
void give_multiprocessors(int device, int count, const std::string& holder);
int free_multiprocessors(int device);
std::string holders_of_multiprocessors(int device);

// The time until the last of `multiprocessors` is done, if each takes the next piece of work as soon as it is free.
int64_t makespan(const std::vector<int64_t>& pieces, int multiprocessors);

}  // namespace trivet::emulation
