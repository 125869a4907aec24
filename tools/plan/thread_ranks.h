// Ranks that are threads of one process on CPUs: their tapes in the terms of the replay, and what their records cost.
//
//   host          it computes: the compute stream is inline. So work for another stream can start once all compute
//                 queued before it is done, and where the host waits, compute waits
//   collectives   ranks meet, each copies or adds its part on its own thread, and they meet again (thread_comm.cc)
//   transfers     the sender copies and does not wait; receives are assumed to be posted by then (thread_mailbox.h)
//   links         emulated ones (parallel/comm/link.h) are part of the run: a call ends when they have brought the last
//                 byte, too. A rank's port is taken first come, first served
//   cores         all ranks share those of the node: with more busy threads than cores, each works at its
//                 share; with all cores busy, `contention` times as long
//
// Threads that wait take no core, as condition variables block.
#pragma once

#include "parallel/comm/link.h"
#include "tools/plan/rehearsal.h"
#include "tools/plan/system.h"

namespace trivet {

// Rewrites the tapes of a rehearsal whose device was a CPU (TapeOptions::cpu).
void play_on_threads(Rehearsal& rehearsal, const Links& links);

// Threads of a rank's compute stream: as configured, or the cores over the ranks.
int threads_of_rank(const Config& config, const System& system, int ranks);

// The parts of an op that take time on a CPU.
struct CpuWork {
  double flops = 0;         // of products, with what whole panels of operands add
  double cache_bytes = 0;   // operands and results of GEMMs and of other ops
  double elements = 0;      // of ops other than GEMMs
  double scores = 0;        // of attention, once for each product
  double state_bytes = 0;   // of the optimizer's passes, through memory
  double copied_bytes = 0;  // of a call: a rank goes over its whole tensor once
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
