#include "parallel/pipeline/closed_form.h"

#include <algorithm>

namespace trivet {

std::optional<ClosedForm> closed_form(const Schedule& schedule, const StageCosts& costs) {
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

std::optional<std::vector<int>> closed_form_slots(const Schedule& schedule) {
  const int p = schedule.p, m = schedule.m, v = schedule.v;
  const std::string& kind = schedule.kind;
  std::vector<int> slots;
  for (int r = 0; r < p; ++r) {
    const int after = p - 1 - r;
    if (kind == "gpipe") slots.push_back(m);
    else if (kind == "1f1b") slots.push_back(std::min(after + 1, m));
    else if (kind == "1f1b-eager") slots.push_back(std::min(2 * after + 1, m));
    else if (kind == "interleaved") slots.push_back(std::min(2 * after + (v - 1) * *schedule.group_size + 1, m * v));
    else if (kind == "interleaved-bfs") slots.push_back(m * v);
    else if (kind == "zb-h1") slots.push_back(std::min(p, m));
    else if (kind == "zb-h2") slots.push_back(std::min(2 * p - 1, m));
    else if (kind == "zb-v" && m >= 2 * p - 1) slots.push_back(2 * p);
    else if (kind == "dualpipe-v") slots.push_back(2 * p + 1);
    else return std::nullopt;
  }
  return slots;
}

}  // namespace trivet
