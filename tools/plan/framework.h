// Frameworks: the cost of a recorded operation in the program that `plan:` describes. Published runs are those of other
// frameworks, which launch more and smaller kernels than this engine for the same layer; their layouts, schedules and
// overlaps are the ordinary keys.
#pragma once

#include "tools/plan/section.h"
#include "tools/plan/system.h"
#include "tools/plan/tape.h"

namespace trivet {

// plan.framework, or its value by the other keys: kernels that are launched one by one are PyTorch's own, and
// frameworks with fused kernels had fused attention last.
PlanFramework framework_of(const PlanConfig& plan);

//   trivet     as the engine queues it
//   megatron   GELU is a kernel besides its GEMM, cross entropy makes passes in fp32, full recomputation repeats the
//              last GEMM of an MLP, whose output the engine has saved, and mixed precision copies gradients and weights
//   pytorch    the same but for recomputation, which stops early; norms, residual additions and Adam are eager kernels
double work_seconds(const System& system, const PlanConfig& plan, const TapeWork& work);

// The host's time to queue one of the engine's operations: with plan.ops_per_layer, of as many kernels as the framework
// launches where the engine launches one.
double launch_seconds(const System& system, const PlanConfig& plan);

}  // namespace trivet
