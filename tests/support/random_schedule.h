// Pipeline schedules that no one would write: any order of ops that a rank could run.
#pragma once

#include <random>

#include "parallel/pipeline/schedule.h"

namespace trivet::test {

// Uniform in [low, high]; unlike the standard library's distributions, the same on every machine.
int draw(std::mt19937_64& random, int low, int high);

// A schedule for `map` with p ranks, v chunks and m micro-batches. An op is ready once its input is at the front of its
// channel; the next op is drawn from the ready ones. Each stage accumulates gradients in the order of micro-batches;
// backward passes are whole or, with `halves`, some of them are split into two halves.
Schedule random_schedule(std::mt19937_64& random, int p, int v, int m, StageMap map, bool halves);

}  // namespace trivet::test
