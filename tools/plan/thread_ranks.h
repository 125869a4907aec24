// CPU ranks that are threads of one process: rewrites their tapes for the replay, and prices their records.
//
//   host          runs the compute stream inline. So work on another stream can start only after all compute queued
//                 before it has finished, and compute waits whenever the host waits
//   collectives   barrier, each rank copies or adds its part in its own thread, barrier (thread_comm.cc)
//   transfers     the sender copies and does not wait; receives are assumed to be posted by then (thread_mailbox.h)
//   links         emulated links (parallel/comm/link.h) are part of the run: a call also waits for its last byte to
//                 arrive over them. A rank's port serves calls in order of arrival
//   cores         all ranks share the node's cores: if more threads are busy than there are cores, each gets an equal
//                 share of them; with all cores busy, work takes `contention` times as long
//
// Waiting threads occupy no core: they block on condition variables.
#pragma once

#include "parallel/comm/link.h"
#include "tools/plan/rehearsal.h"
#include "tools/plan/system.h"

namespace trivet {

// Rewrites the tapes of a rehearsal that was recorded for CPUs (TapeOptions::cpu).
void play_on_threads(Rehearsal& rehearsal, const Links& links);

// Threads of a rank's compute stream: as configured, or an equal share of the cores.
int threads_of_rank(const Config& config, const System& system, int ranks);

// The parts of an op that determine its time on a CPU.
struct CpuWork {
  double flops = 0;         // of GEMMs and attention, with operands padded to whole panels
  double cache_bytes = 0;   // operands and results of GEMMs, and of the ops that `elements` counts
  double elements = 0;      // of ops other than GEMMs, attention and the optimizer's
  double scores = 0;        // of attention, counted once per matmul
  double state_bytes = 0;   // of the optimizer's passes over memory
  double copied_bytes = 0;  // of a call: each rank passes over its whole tensor once
};
CpuWork cpu_work(const TapeWork& work);
// The time of an op or a copy on `threads` threads.
double cpu_work_seconds(const System& system, const TapeWork& work, int threads);

class ThreadCosts : public ReplayCosts {
 public:
  // threads: of each rank's compute stream.
  ThreadCosts(const System& system, int threads, const Links& links, bool shared_port)
      : system_(system), threads_(threads), links_(links), shared_port_(shared_port) {}
  int64_t work_ns(const TapeWork& work, bool in_graph) const override;
  CallCost call_cost(const TapeCall& call, const TapeGroups::Group& group) const override;
  bool buffered_sends() const override { return true; }
  int threads() const override { return threads_; }
  double core_rate(int64_t busy_threads) const override;

 private:
  const System system_;
  const int threads_;
  const Links links_;
  const bool shared_port_;
};

}  // namespace trivet
