// Frameworks: the cost of a recorded operation in the program that `plan:` describes. Published runs used other
// frameworks, which launch more and smaller kernels than this engine for the same layer; their layouts, schedules and
// overlaps are configured with the ordinary keys.
#pragma once

#include "tools/plan/section.h"
#include "tools/plan/system.h"
#include "tools/plan/tape.h"

namespace trivet {

// plan.framework, or its default as implied by other keys: ops_per_layer implies PyTorch's eager kernels; unfused
// attention implies Megatron, which fused its other kernels first.
PlanFramework framework_of(const PlanConfig& plan);

//   trivet     as the engine queues it
//   megatron   GELU is a separate kernel, cross entropy takes fp32 passes, full recomputation repeats an MLP's last
//              GEMM, whose output the engine saves, and mixed precision copies gradients and weights
//   pytorch    the same, except that recomputation stops early; norms, residual additions and Adam are eager kernels
double work_seconds(const System& system, const PlanConfig& plan, const TapeWork& work);

// Host time to queue one of the engine's operations; with plan.ops_per_layer, to launch the kernels that the framework
// launches in its place.
double launch_seconds(const System& system, const PlanConfig& plan);

}  // namespace trivet
