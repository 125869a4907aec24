// Fault injection: `trivet train … --inject FAULT:RANK:STEP[:PHASE]`. docs/faults.md has the table.
//
//   RANK    a number, `last`, or `all`        STEP   from 1; each fault strikes once; `slow` continues
//   PHASE   step, forward, backward, reduce, optimizer, save: the fault strikes at its start; each fault has a default
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/disk.h"
#include "kernels/base/device.h"
#include "parallel/comm/call.h"

namespace trivet {

enum class StepPhase : uint8_t {
  step,       // begin: before anything in the step; end: after the weight update
  forward,    // of each micro-batch and chunk
  backward,   // the same
  reduce,     // the rest of the gradient reduction
  optimizer,  // norm, clipping, update
  save,       // of a checkpoint; called by its writer
};

enum class FaultKind : uint8_t {
  kill,
  abort,
  segv,
  throw_error,
  stop,
  slow,
  nan,
  inf,
  bitflip,
  skip,
  extra,
  wrong_size,
  wrong_type,
  oom,
  enospc,
  eio,
  torn_write
};

struct Fault {
  static constexpr int kAll = -1, kLast = -2;
  FaultKind kind = FaultKind::kill;
  double factor = 1;  // the slowdown of `slow`
  int rank = 0;
  int64_t step = 1;
  StepPhase phase = StepPhase::step;
  std::string text;  // as given on the command line

  bool strikes(int rank_of_world, int world_size) const {
    return rank == kAll || rank == rank_of_world || (rank == kLast && rank_of_world == world_size - 1);
  }
};

// Throws a ConfigError that lists the valid faults.
Fault parse_fault(const std::string& text);
std::vector<Fault> parse_faults(std::span<const std::string> texts);
std::string fault_table();  // one line per fault
std::vector<std::string_view> fault_names();

// The values in device memory that a fault on this rank can corrupt.
struct FaultTargets {
  Device* device = nullptr;
  Stream* stream = nullptr;
  Tensor gradient;  // fp32: gradient of the first parameter that this rank updates, in the copy the optimizer reads
  Tensor weight;    // that parameter's main weight
  Tensor loss;      // [1] fp32: the running sum
};

// The faults of one rank. Used by the rank's main thread, except next_call() and disk_fault().
class FaultInjector : public CallFaults {
 public:
  // Throws ConfigError for a rank outside the world.
  FaultInjector(std::span<const Fault> faults, int rank, int world_size);
  bool none() const { return faults_.empty(); }

  // For `oom`, a Memory that refuses every allocation; else null.
  Memory* memory();
  void attach(const FaultTargets& targets) { targets_ = targets; }

  // Called as the rank passes through a step. step: the current one, from 1.
  void begin(StepPhase phase, int64_t step);
  void end(StepPhase phase, int64_t step);
  CallFault next_call() override;

  // The faults that have not struck, as given; "": none.
  std::string not_struck() const;

  // The fault to inject into checkpoint writes; empty: none. Called by the writer's thread.
  Disk::Fault disk_fault();

 private:
  void strike(const Fault& fault, int64_t step);
  void corrupt_number(const Fault& fault);

  std::vector<Fault> faults_;  // on this rank
  mutable std::mutex mutex_;   // guards struck_ and saved_step_: a checkpoint may be written while steps run
  int64_t saved_step_ = 0;     // the step being saved
  std::vector<bool> struck_;
  double slow_ = 1;
  int64_t phase_begin_ns_ = 0;
  std::atomic<CallFault> next_call_ = CallFault::none;
  FaultTargets targets_;
};

}  // namespace trivet
