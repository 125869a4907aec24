// For the tests of schedules: the engine's checker, simulator and renderer on a student's programs.
#pragma once

#include <fmt/ranges.h>

#include "docs/course/exercises/support/testing.h"
#include "parallel/pipeline/check.h"
#include "parallel/pipeline/simulate.h"
#include "tools/draw/render.h"

namespace trivet::exercise {

struct Proof {
  std::string problems;  // found by the checker, one per line; empty: the schedule works
  std::string drawing;
  Bubble bubble;
  std::vector<int> slots{};  // [p] the most micro-batches whose activations a rank holds at the same time
};

// Checks the schedule that generator(p, m, rank) gives on all ranks.
inline Proof prove(Program (*generator)(int, int, int), int p, int m, const StageCosts& costs) {
  Schedule schedule{.p = p, .m = m};
  for (int rank = 0; rank < p; ++rank) schedule.programs.push_back(generator(p, m, rank));
  if (const auto problems = find_problems(schedule); !problems.empty())
    return {fmt::format("{}\nin the schedule\n{}", fmt::join(problems, "\n"), to_text(schedule)), "", {}};
  const Timeline timeline = simulate(schedule, {.stages = {costs}});
  Proof proof{"", render_text(timeline, {.columns = 110}), bubble_of(timeline)};
  for (const Peak& peak : peaks_of(schedule.programs, 1)) proof.slots.push_back(peak.slots);
  return proof;
}

}  // namespace trivet::exercise
