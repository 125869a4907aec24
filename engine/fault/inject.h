// Faults on purpose: `trivet train … --inject FAULT:RANK:STEP[:PHASE]`, so that what a run does in trouble can be shown
// before there is trouble. docs/faults.md has the table.
//
//   RANK    a number, `last`, or `all`        STEP   from 1; each fault strikes once, slow from that step on
//   PHASE   step, forward, backward, reduce, optimizer, save: at whose beginning; each fault has a usual one
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/disk.h"
#include "engine/fault/step_hook.h"
#include "kernels/base/device.h"
#include "parallel/comm/call_faults.h"

namespace trivet {

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
  double factor = 1;  // of slow
  int rank = 0;
  int64_t step = 1;
  StepPhase phase = StepPhase::step;
  std::string text;  // as it was written

  bool strikes(int rank_of_world, int world_size) const {
    return rank == kAll || rank == rank_of_world || (rank == kLast && rank_of_world == world_size - 1);
  }
};

// Throws ConfigError, with the list of faults.
Fault parse_fault(const std::string& text);
std::vector<Fault> parse_faults(std::span<const std::string> texts);
std::string fault_table();  // one line a fault

// What a fault of this rank can spoil, in this device's memory.
struct FaultTargets {
  Device* device = nullptr;
  Stream* stream = nullptr;
  Tensor gradient;  // fp32: of the first parameter that this rank updates, where the optimizer reads it
  Tensor weight;    // that parameter's, what the optimizer goes on from
  Tensor loss;      // [1] fp32: that is being summed up
};

// The faults of one rank. Used by the rank's main thread, but for next_call() and disk_fault().
class FaultInjector : public StepHook, public CallFaults {
 public:
  // Throws ConfigError for a rank outside the world.
  FaultInjector(std::span<const Fault> faults, int rank, int world_size);
  bool none() const { return faults_.empty(); }

  // `oom` at step 0 is about building the rank: the device on which this is to happen; else `device` itself.
  std::unique_ptr<Device> limit_memory(std::unique_ptr<Device> device);
  void attach(const FaultTargets& targets) { targets_ = targets; }

  void begin(StepPhase phase, int64_t step) override;
  void end(StepPhase phase, int64_t step) override;
  CallFault next_call() override;

  // What the rank's checkpoints do to the disk; empty where no fault is about that. Called by the writer's thread.
  Disk::Fault disk_fault();

 private:
  void strike(const Fault& fault, int64_t step);
  void corrupt_number(const Fault& fault);

  std::vector<Fault> faults_;  // of this rank
  std::mutex mutex_;           // guards struck_ and saved_step_: a checkpoint may be written beside the steps
  int64_t saved_step_ = 0;     // that is being saved
  std::vector<bool> struck_;
  double slow_ = 1;
  int64_t phase_begin_ns_ = 0;
  std::atomic<CallFault> next_call_ = CallFault::none;
  FaultTargets targets_;
};

}  // namespace trivet
