// A study's conclusions, in sentences.
#include <algorithm>
#include <cctype>
#include <fmt/format.h>

#include "tools/study/child_process.h"
#include "tools/study/report.h"

namespace trivet {
namespace {

// "step 135.7 ms, 0.927 of the baseline (95 %: 0.913 to 0.941, n = 6)"
std::string result_text(const Study& study, const PointSummary& point) {
  std::string text =
      fmt::format("{} {}", metric_name(study.metric), metric_text(study.metric, point.adjusted.value_or(0)));
  const Estimate* ratio = point.ratio(study.metric);
  if (point.baseline) return text + ", which is the baseline";
  if (!ratio) return text;
  text += fmt::format(", {} of the baseline", ratio_text(ratio->value));
  if (ratio->has_interval())
    text += fmt::format(" (95 %: {} to {}, n = {})", ratio_text(ratio->low), ratio_text(ratio->high), ratio->rounds);
  return text;
}

std::string tied_text(const Study& study, const Plan& plan, const Conclusion& conclusion) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, conclusion.best.size()); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : "; ", describe_chosen(study, plan.points[conclusion.best[i]].choice));
  if (conclusion.best.size() > kMost) text += fmt::format("; and {} more", conclusion.best.size() - kMost);
  return fmt::format("tied for best: {{{}}}", text);
}

std::string conclusion_text(const Study& study, const Plan& plan, const Summary& summary,
                            const Conclusion& conclusion) {
  const size_t leader = *conclusion.leader;
  const std::string ahead = fmt::format("{}: {}", describe_chosen(study, plan.points[leader].choice),
                                        result_text(study, summary.points[leader]));
  if (conclusion.points.size() < 2) return "no comparison: there is only " + ahead + ".";
  if (conclusion.rounds < kFewestRounds)
    return fmt::format("too few rounds for a verdict ({}, expected at least {}). Ahead so far: {}.", conclusion.rounds,
                       kFewestRounds, ahead);
  if (conclusion.best.empty()) return "no comparison: only one point has enough rounds, " + ahead + ".";
  if (conclusion.best.size() == 1) return "best: " + ahead + ".";
  std::string text = tied_text(study, plan, conclusion) + ". Ahead, but not significantly: " + ahead + ".";
  if (summary.may_be_best(conclusion.baseline) && conclusion.baseline != leader)
    text += " The baseline is among them: no point was shown to be better.";
  return text;
}

// How many points the conclusion omits, and why.
std::string left_out_text(const Study& study, const Summary& summary, const Conclusion& conclusion) {
  int64_t failed = 0, few = 0, differ = 0;
  for (const size_t i : conclusion.points) {
    const Estimate* ratio = summary.points[i].ratio(study.metric);
    if (!summary.points[i].failure.empty()) ++failed;
    else if (!summary.points[i].disagreement.empty()) ++differ;
    else if (conclusion.rounds >= kFewestRounds && (!ratio || ratio->rounds < kFewestRounds)) ++few;
  }
  std::string text;
  const auto add = [&](int64_t n, const std::string& one, const std::string& many) {
    if (n > 0)
      text += fmt::format(" {} {} left out.", counted(n, "point"), n == 1 ? one + " and is" : many + " and are");
  };
  add(failed, "failed", "failed");
  add(differ, "does not have the expected losses", "do not have the expected losses");
  add(few, fmt::format("has fewer than {} rounds", kFewestRounds),
      fmt::format("have fewer than {} rounds", kFewestRounds));
  return text;
}

}  // namespace

std::vector<std::string> winner_texts(const Study& study, const Plan& plan, const Summary& summary) {
  std::vector<std::string> texts;
  for (const Conclusion& conclusion : summary.conclusions) {
    if (!conclusion.leader) continue;
    const std::string conditions = describe_conditions(study, plan.points[conclusion.points[0]].choice);
    std::string text = conclusion_text(study, plan, summary, conclusion);
    if (conditions.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    texts.push_back((conditions.empty() ? "" : "With " + conditions + ": ") + text +
                    left_out_text(study, summary, conclusion));
  }
  if (texts.empty()) {
    texts.push_back("No point has finished runs next to its baseline's in which " + study.metric +
                    " is above 0: there is nothing to compare.");
    if (summary.failed > 0)
      texts.push_back(fmt::format("{} failed; --retry-failed runs {} again.", counted(summary.failed, "point"),
                                  summary.failed == 1 ? "it" : "them"));
  }
  if (summary.machines.size() > 1)
    texts.push_back(fmt::format(
        "The runs come from {} programs or machines (at the end of table.md): each ratio is within one call, but the "
        "means are over all of them.",
        summary.machines.size()));
  if (summary.shared_cores > 0) texts.push_back(shared_cores_text(summary.threads, summary.shared_cores));
  return texts;
}

std::string shared_cores_text(int threads, int cores) {
  return fmt::format(
      "{} threads compute on {}: where ranks take turns, exposed time and waiting measure the scheduler.", threads,
      counted(cores, "core"));
}

std::string resolution_text(const Summary& summary) {
  if (!summary.resolution) return "";
  const auto effect_text = [](double effect) {  // two noisy rounds may detect only factors of millions
    return effect < 1 ? percent_text(effect) : fmt::format("a factor of {:.3g}", 1 + effect);
  };
  const Resolution& resolution = *summary.resolution;
  std::string text = fmt::format(
      "{} of a point's ratio from round to round{}: {}. So {} and {} find effects of {} and more in about four of five "
      "studies",
      resolution.equal_points ? "Equal points (an A/A study): deviation" : "Deviation",
      summary.conclusions.size() > 1 ? ", over all conditions" : "", percent_text(resolution.deviation),
      counted(resolution.rounds, "round"), counted(resolution.comparisons, "comparison"),
      effect_text(resolution.effect()));
  for (const int64_t rounds : {10, 20, 40}) {
    if (rounds <= resolution.rounds) continue;
    Resolution more = resolution;
    more.rounds = rounds;
    text += fmt::format(", {} rounds {}", rounds, effect_text(more.effect()));
  }
  return text + '.';
}

}  // namespace trivet
