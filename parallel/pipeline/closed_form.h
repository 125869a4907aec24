// Closed forms of the generated schedules' bubbles.
//
// They hold for stages of equal cost and free transfers, with tF, tI, tW the times of a whole rank (all its chunks) per
// micro-batch, and T = tF + tI + tW less what a whole backward pass saves. The tests compare the simulator with them
// exactly. The papers' forms cover tW <= tF <= tI; the others were found by simulation.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulate.h"

namespace trivet {

struct ClosedForm {
  double bubble = 0;
  std::optional<double> without_barrier;  // for Barrier::none; empty if no separate form is known
  std::string formula;                    // of `bubble`
};
// `costs`: those of every stage. Empty if no form holds, and for schedules that make_schedule did not generate.
inline std::optional<ClosedForm> closed_form(const Schedule& schedule, const StageCosts& costs) {
  const double p = schedule.p, m = schedule.m, v = schedule.v;
  const double f = v * costs.forward, i = v * costs.backward_input, w = v * costs.backward_weight;
  const double fused = v * (costs.forward + costs.of(OpKind::backward));
  const std::string& kind = schedule.kind;
  if (kind == "gpipe" || kind == "1f1b" || kind == "1f1b-eager") return {{(p - 1) * fused, {}, "(p-1) T"}};
  if (kind == "interleaved") return {{(p - 1) * fused / v, {}, "(p-1) T/v"}};
  if (kind == "interleaved-bfs" && m >= p) return {{(p - 1) * fused / v, {}, "(p-1) T/v"}};
  if (kind == "interleaved-bfs") return {{((p - 1) + (p - m) * (v - 1)) * fused / v, {}, "((p-1) + (p-m)(v-1)) T/v"}};
  if (kind == "zb-h1" && m >= p) return {{(p - 1) * std::max({f, i, f + i - w}), {}, "(p-1) max(tF, tI, tF+tI-tW)"}};
  if (kind == "zb-h2" && m >= 2 * p - 1)
    return {{(p - 1) * std::max({f, i - f, f + i - 2 * w}), (p - 1) * std::max({0., i - f, f + i - 2 * w}),
             "(p-1) max(tF, tI-tF, tF+tI-2tW)"}};
  if (kind == "zb-v" && m >= 2 * p - 1 && i >= f && i >= w)
    return {{(p - 1) * std::max(i / 2, i - w), f >= w ? std::optional((p - 1) * (i - w)) : std::nullopt,
             "(p-1) max(tI/2, tI-tW)"}};
  if (kind == "dualpipe-v" && m >= 2 * p && i == f && f >= w && costs.whole_saves == 0)
    return {{(p - 1) * (f + i - w) / 2, {}, "(p-1) (tF+tI-tW)/2"}};
  return std::nullopt;
}

}  // namespace trivet
