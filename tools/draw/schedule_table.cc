#include "tools/draw/schedule_table.h"

#include <algorithm>
#include <fmt/format.h>

#include "parallel/pipeline/check.h"
#include "parallel/pipeline/closed_form.h"

namespace trivet {
namespace {

// Each rank's peak, abbreviated if all peaks are equal or there are many ranks.
std::string peaks_text(const std::vector<Peak>& peaks, int Peak::*member) {
  std::string text;
  const bool alike =
      std::all_of(peaks.begin(), peaks.end(), [&](const Peak& peak) { return peak.*member == peaks[0].*member; });
  if (alike) return fmt::format("{}", peaks[0].*member);
  if (peaks.size() > 8) return fmt::format("{} .. {}", peaks.front().*member, peaks.back().*member);
  for (const Peak& peak : peaks) text += fmt::format("{}{}", text.empty() ? "" : " ", peak.*member);
  return text;
}

}  // namespace

std::vector<std::string> schedule_columns() {
  return {"schedule", "makespan", "bubble",     "closed form", "no barrier",
          "of ideal", "of total", "peak slots", "stashes",     "transfers"};
}

std::vector<std::string> schedule_row(const Schedule& schedule, const Costs& costs, const Timeline& timeline) {
  const Bubble bubble = bubble_of(timeline);
  const std::vector<Peak> peaks = peaks_of(programs_of(timeline), schedule.v);
  const ChannelDepths depths = channel_depths(schedule);
  const bool alike = std::all_of(costs.stages.begin(), costs.stages.end(), [&](const StageCosts& stage) {
    return stage.forward == costs.stages[0].forward && stage.backward_input == costs.stages[0].backward_input &&
           stage.backward_weight == costs.stages[0].backward_weight;
  });
  const bool free = costs.latency == 0 && (costs.bytes == 0 || costs.bandwidth == 0) && costs.channel_depth == 0;
  const auto form = alike && free ? closed_form(schedule, costs.stages[0]) : std::nullopt;
  return {schedule.kind,
          fmt::format("{:.6g}", bubble.makespan),
          fmt::format("{:.6g}", bubble.time()),
          form ? fmt::format("{:.6g} = {}", form->bubble, form->formula) : "-",
          fmt::format("{:.6g}", bubble_of(timeline, Barrier::none).time()),
          fmt::format("{:.1f} %", 100 * bubble.of_ideal()),
          fmt::format("{:.1f} %", 100 * bubble.of_total()),
          peaks_text(peaks, &Peak::slots) + (schedule.v > 1 ? fmt::format(" (1/{})", schedule.v) : ""),
          peaks_text(peaks, &Peak::stashes),
          fmt::format("{} (depth {})", timeline.transfers.size(), depths.smooth)};
}

}  // namespace trivet
