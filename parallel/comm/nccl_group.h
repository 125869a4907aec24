// A rank's NCCL communicators, and their abort on failure. For nccl_comm.cc only.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"

namespace trivet {

// One NCCL communicator. Any thread may call stop() and error().
class NcclGroup {
 public:
  NcclGroup(const std::string& name, int rank, int size, int most_ctas, double timeout_s);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Must precede all other calls except stop(). Collective.
  void open(const ncclUniqueId& id);
  // Only end() may follow close(); it waits for the peers' close(). False: closing failed; the group must be aborted.
  void close() noexcept;
  bool end() noexcept;

  // Makes one call f(ncclComm_t) and waits until NCCL has enqueued it.
  template <class F>
  void call(const char* what, const F& f) {
    std::lock_guard lock(mutex_);
    check_usable(what);
    finish(f(comm_), what);
    ++calls_;
    last_ = what;
  }

  // Returns NCCL's handle for `memory`, to be passed to deregister().
  void* register_buffer(Tensor memory);
  void deregister(void* handle) noexcept;

  // NCCL's asynchronous error. Empty: none, or a thread is inside NCCL and will get the error there.
  std::string error() noexcept;
  // Interrupts a waiting call and makes all later ones throw `why`. The returned lock keeps other threads out of NCCL.
  std::unique_lock<std::mutex> stop(const std::string& why) noexcept;
  // Both REQUIRE stop()'s lock, until the end of the NCCL group in which abort() is called. revoke(), if NCCL has it,
  // releases waiting kernels without waiting itself; abort() also frees the communicator.
  void revoke() noexcept;
  void abort() noexcept;

  static bool is_error(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

 private:
  [[noreturn]] void fail_with(const char* what, const std::string& why) const;
  std::string text_of(ncclResult_t result) const;
  void check_usable(const char* what);                 // REQUIRES: mutex_
  void finish(ncclResult_t result, const char* what);  // REQUIRES: mutex_

  const std::string name_, label_;
  const int rank_, size_, most_ctas_;
  const double timeout_;
  std::mutex mutex_;  // held while a thread is inside NCCL
  ncclComm_t comm_ = nullptr;
  ncclResult_t finalized_ = ncclInvalidUsage;  // result of close()
  int64_t calls_ = 0;
  const char* last_ = "";  // the latest call's name
  bool failed_ = false;
  std::string why_;
  std::atomic<bool> aborting_ = false;
};

// Memory that NCCL can register: it comes with handles for other GPUs, switches and network cards.
class NcclMemory : public Memory {
 public:
  void* allocate(int64_t bytes) override;
  void deallocate(void* data, int64_t bytes) noexcept override;
};

// All groups of one rank, which end together: ncclCommFinalize waits for the peers, so ranks that ended their groups
// one by one, in different orders, would deadlock.
//
// When a rank or a connection fails, streams wait inside NCCL, and hosts wait for these streams: failures in the host
// world do not reach them, and NCCL reports asynchronous errors only on request. So a thread on each rank polls for
// both until its groups have ended. On either, it aborts NCCL on this rank and poisons the device, so that a waiting
// host throws the error instead of using incomplete data. All communicators are revoked, then aborted in one NCCL
// group: an abort frees memory, which may wait for the whole GPU, including the kernels of groups not yet aborted.
class NcclRank {
 public:
  NcclRank(Communicator& host, Device& device, double timeout_s, double part);  // part: of most_ctas
  ~NcclRank();

  std::shared_ptr<NcclGroup> add(const std::string& name, int rank, int size, int most_ctas);
  void set_abort_diagnostics(std::function<std::string()> abort_diagnostics);
  // On a failure, aborts and throws an Error with the reason. Any thread.
  void poll();
  void abort(const std::string& why) noexcept;

  Communicator& host;
  Device& device;
  NcclMemory memory;

 private:
  void watch();
  std::string error();

  const double timeout_s_, part_;
  const int exceptions_;
  std::mutex mutex_;  // guards the next three
  std::vector<std::shared_ptr<NcclGroup>> groups_;
  std::function<std::string()> abort_diagnostics_;
  std::string why_;  // constant once aborted; empty before
  std::mutex poll_mutex_;

  std::mutex watch_mutex_;
  std::condition_variable ends_;
  bool over_ = false;
  std::thread watcher_;  // last
};

}  // namespace trivet
