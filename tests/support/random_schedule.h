// Pipeline schedules that nobody would write: any order of ops that a rank could run.
#pragma once

#include <random>

#include "parallel/pipeline/schedule.h"

namespace trivet::test {

// Uniform in [low, high]; unlike the standard's distributions the same on every machine.
int draw(std::mt19937_64& random, int low, int high);

// Of `map` over p ranks, v chunks and m micro-batches. Every op may come as soon as its input is there, at the front of
// its channel; one of those that may is drawn. Each stage adds its gradients in the order of micro-batches, and
// backward passes are whole or, with `halves`, some of them two halves.
Schedule random_schedule(std::mt19937_64& random, int p, int v, int m, StageMap map, bool halves);

}  // namespace trivet::test
