// A rank's NCCL communicators, and what ends them all when something fails. Only nccl_comm.cc includes this.
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
  NcclGroup(const std::string& name, int rank, int size, double timeout_s);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Comes before all else but stop(). Collective.
  void open(const ncclUniqueId& id);
  // No call follows; end() waits until the peers have come here too. False: they did not, and it is there to be
  // aborted.
  void close() noexcept;
  bool end() noexcept;

  // Makes one call f(ncclComm_t) and waits until NCCL has taken it: not until it has run.
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

  // What NCCL has found wrong behind the calls; empty: nothing, or a thread is inside NCCL and hears of it there.
  std::string error() noexcept;
  // Stops a call that waits, and lets every other one throw `why`. Who holds the result is alone with NCCL here.
  std::unique_lock<std::mutex> stop(const std::string& why) noexcept;
  // REQUIRES: what stop() gave is held, and until NCCL's group ends in which this is called.
  void abort() noexcept;

  static bool is_error(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

 private:
  [[noreturn]] void fail_with(const char* what, const std::string& why) const;
  std::string text_of(ncclResult_t result) const;
  void check_usable(const char* what);                 // REQUIRES: mutex_
  void finish(ncclResult_t result, const char* what);  // REQUIRES: mutex_

  const std::string name_, label_;
  const int rank_, size_;
  const double timeout_;
  std::mutex mutex_;  // held while a thread is inside NCCL
  ncclComm_t comm_ = nullptr;
  ncclResult_t finalized_ = ncclInvalidUsage;  // what close() was told
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

// All groups of one rank, which end together, and no earlier: ncclCommFinalize waits for the peers, so ranks that ended
// one group after another, each in an order of its own, would wait for each other in a circle.
//
// When a rank fails, or a connection, streams wait inside NCCL, and hosts for these streams: no news from the host's
// world reaches them, and NCCL tells an error of the kernels that wait to whoever asks for it. So a thread of each rank
// looks for both, until its groups have ended. On either it breaks off what NCCL does on this rank, and poisons the
// device, so that the host, wherever it waits, goes on with the error and not with what was left half done. All
// communicators are aborted in one group of NCCL's: each frees memory, which may take CUDA until the whole GPU is
// through, and so, one after another, until the kernels of those that come later have ended.
class NcclRank {
 public:
  NcclRank(Communicator& host, Device& device, double timeout_s);
  ~NcclRank();

  std::shared_ptr<NcclGroup> add(const std::string& name, int rank, int size);
  void set_abort_diagnostics(std::function<std::string()> abort_diagnostics);
  // Aborts, and throws Error that says why, where something has gone wrong. Any thread.
  void look();
  void abort(const std::string& why) noexcept;

  Communicator& host;
  Device& device;
  NcclMemory memory;

 private:
  void watch();
  std::string error();

  const double timeout_s_;
  const int exceptions_;
  std::mutex mutex_;  // guards the next three
  std::vector<std::shared_ptr<NcclGroup>> groups_;
  std::function<std::string()> abort_diagnostics_;
  std::string why_;  // not empty: it has aborted, and this stays
  std::mutex look_mutex_;

  std::mutex watch_mutex_;
  std::condition_variable ends_;
  bool over_ = false;
  std::thread watcher_;  // last
};

}  // namespace trivet
