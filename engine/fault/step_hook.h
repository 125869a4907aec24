// StepHook: called as a rank passes through a step, on the rank's main thread.
#pragma once

#include <cstdint>

namespace trivet {

enum class StepPhase : uint8_t {
  step,       // begin: before anything in the step; end: after the weight update
  forward,    // of each micro-batch and chunk
  backward,   // the same
  reduce,     // the rest of the gradient reduction
  optimizer,  // norm, clipping, update
  save,       // of a checkpoint; called by its writer
};
constexpr int kStepPhases = 6;

class StepHook {
 public:
  virtual ~StepHook() = default;
  virtual void begin(StepPhase phase, int64_t step) = 0;  // step: the current one, from 1
  virtual void end(StepPhase phase, int64_t step) = 0;
};

}  // namespace trivet
