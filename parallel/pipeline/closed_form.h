// Closed forms of the generated schedules' bubbles.
//
// They hold for stages of equal cost and free transfers. With tF, tI, tW the times of a whole rank (all its chunks) for
// one micro-batch and T = tF + tI + tW, less what a whole backward pass saves, the bubble (makespan - busy of a rank)
// is
//
//   gpipe, 1f1b, 1f1b-eager   (p-1) T                             any m, any costs
//   interleaved               (p-1) T / v                         any m and group size that the schedule allows
//   interleaved-bfs           (p-1) T / v                         m >= p; + (p-m) (v-1) T / v where m < p
//   zb-h1                     (p-1) max(tF, tI, tF + tI - tW)     m >= p
//   zb-h2                     (p-1) max(tF, tI - tF, tF + tI - 2 tW)          m >= 2p-1
//       without a barrier     (p-1) max(0, tI - tF, tF + tI - 2 tW)
//   zb-v                      (p-1) max(tI / 2, tI - tW)          m >= 2p-1, tI >= tF and tI >= tW
//       without a barrier     (p-1) (tI - tW)                     and tF >= tW
//   dualpipe-v                (p-1) (tF + tI - tW) / 2            m >= 2p, tI = tF >= tW
//
// The tests compare the simulator with them exactly. The papers' forms are the cases tW <= tF <= tI; the rest was found
// by simulation.
#pragma once

#include <optional>
#include <string>

#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulate.h"

namespace trivet {

struct ClosedForm {
  double bubble = 0;
  std::optional<double> without_barrier;  // Barrier::none; empty where it has no form of its own
  std::string formula;                    // of `bubble`
};
// `costs` of every stage. Empty where no form holds, and for schedules that make_schedule did not make.
std::optional<ClosedForm> closed_form(const Schedule& schedule, const StageCosts& costs);

}  // namespace trivet
