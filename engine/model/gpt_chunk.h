// GptChunk: a GptStage as the pipeline's executor sees it, with its rank's context and the step's micro-batches.
#pragma once

#include <optional>
#include <span>

#include "engine/fault/inject.h"
#include "engine/model/gpt_stage.h"
#include "engine/model/step_input.h"
#include "parallel/pipeline/stage.h"

namespace trivet {

// The micro-batches that a rank runs in one step, in order.
struct StepBatches {
  std::span<const HostBatch> batches;  // must stay valid until the device has read them
  bool training = true;
  float loss_scale = 1;
  std::optional<PositionRange> positions = {};  // positions of the tokens in each batch; empty: all
  int defer_heads = 0;  // finish() computes the output weight's gradient for this many of the last micro-batches
  int64_t step = 0;     // from 1
  FaultInjector* faults = nullptr;  // null: none

  void begin(StepPhase phase) const {
    if (faults) faults->begin(phase, step);
  }
  void end(StepPhase phase) const {
    if (faults) faults->end(phase, step);
  }
};

class GptChunk : public Stage {
 public:
  // No other chunk may use ctx.weight_grads. loss: [1] fp32; the last stage adds to it.
  GptChunk(GptStage& stage, const Context& ctx, Device& device, const StepBatches& step, Tensor loss)
      : stage_(stage), ctx_(ctx), device_(device), step_(step), loss_(loss) {}

  Tensor input(int slot) const override { return stage_.input(slot); }
  void set_input(int slot, Tensor input) override { stage_.set_input(slot, Residual(input)); }
  void copy_input(int slot, Tensor input) override;
  Tensor output(int slot) const override { return stage_.output(slot); }
  void forward(int microbatch, int slot) override;
  void backward(int microbatch, int slot, int stash, Tensor grad) override;
  void backward_weight(int stash) override { ctx_.weight_grads.run(stash); }
  // To be called after the step's last backward.
  void finish() { stage_.run_deferred(ctx_); }
  void poison(int slot) override { stage_.poison(ctx_, slot); }

 private:
  MicroBatch micro_batch(int microbatch, int slot) const;

  GptStage& stage_;
  Context ctx_;
  Device& device_;
  const StepBatches& step_;
  Tensor loss_;
};

}  // namespace trivet
