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

// One NCCL communicator. stop() and error() may come from any thread.
class NcclGroup {
 public:
  NcclGroup(const std::string& name, int rank, int size, int most_ctas, double timeout_s);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Precedes all other calls but stop(). Collective.
  void open(const ncclUniqueId& id);
  // No call follows close(); end() waits for the peers' close(). False: they did not come, and it must be aborted.
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

  // NCCL's handle of `memory`, which deregister() takes.
  void* register_buffer(Tensor memory);
  void deregister(void* handle) noexcept;

  // NCCL's asynchronous error; empty: none, or a thread is inside NCCL, which reports it there.
  std::string error() noexcept;
  // Interrupts a call that waits, and makes all later ones throw `why`. The lock excludes other threads from NCCL.
  std::unique_lock<std::mutex> stop(const std::string& why) noexcept;
  // Both REQUIRE the lock of stop(), until the end of the NCCL group in which abort() is called. revoke() ends what its
  // kernels wait for, and waits for nothing, where NCCL has it; abort() frees the communicator too.
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
  const char* last_ = "";  // of them
  bool failed_ = false;
  std::string why_;
  std::atomic<bool> aborting_ = false;
};

// Memory that NCCL can register: with handles for other GPUs, switches and network cards.
class NcclMemory : public Memory {
 public:
  void* allocate(int64_t bytes) override;
  void deallocate(void* data, int64_t bytes) noexcept override;
};

// All groups of one rank, which end together: ncclCommFinalize waits for the peers, so ranks that ended their groups
// one by one, in different orders, would deadlock.
//
// When a rank or a connection fails, streams wait inside NCCL, and hosts for these streams: failures in the host's
// world do not reach them, and NCCL reports asynchronous errors only on request. So a thread of each rank polls for
// both until its groups have ended. On either it aborts NCCL on this rank and poisons the device, so that a waiting
// host throws the error instead of using incomplete data. All communicators are revoked, then aborted in one NCCL
// group: each frees memory, which may wait for the whole GPU, and so, one after another, for the kernels of later ones.
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
  std::string why_;  // not empty, and constant: aborted
  std::mutex poll_mutex_;

  std::mutex watch_mutex_;
  std::condition_variable ends_;
  bool over_ = false;
  std::thread watcher_;  // last
};

}  // namespace trivet
