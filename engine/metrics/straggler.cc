#include "engine/metrics/straggler.h"

#include <array>
#include <fmt/format.h>

#include "base/statistics.h"

namespace trivet {
namespace {

struct Section {
  const char* name;
  int64_t StepStats::*part;
};
constexpr std::array kSections = {Section{"compute", &StepStats::compute}, Section{"optimizer", &StepStats::optimizer},
                                  Section{"host (data loading)", &StepStats::host},
                                  Section{"outside of operations", &StepStats::idle}};

int64_t own_work(const StepStats& stats) { return stats.compute + stats.optimizer + stats.host + stats.idle; }

}  // namespace

std::vector<std::string> find_stragglers(const std::vector<StepStats>& work, const std::vector<int>& stages,
                                         int64_t steps, double factor) {
  std::vector<std::string> lines;
  for (size_t rank = 0; rank < work.size(); ++rank) {
    std::vector<StepStats> peers, others;
    for (size_t other = 0; other < work.size(); ++other) {
      if (other != rank) others.push_back(work[other]);
      if (other != rank && stages[other] == stages[rank]) peers.push_back(work[other]);
    }
    if (peers.empty()) peers = others;
    if (peers.empty()) return lines;
    const auto usual = [&](auto part) {
      std::vector<int64_t> values;
      for (const StepStats& peer : peers) values.push_back(part(peer));
      return upper_median(std::move(values));
    };
    const int64_t mine = own_work(work[rank]), theirs = usual(own_work);
    if (static_cast<double>(mine) <= factor * static_cast<double>(theirs) || mine - theirs < 1'000'000 * steps)
      continue;
    const Section* worst = nullptr;
    int64_t lost = -1;
    for (const Section& section : kSections) {
      const int64_t more = work[rank].*section.part - usual([&](const StepStats& w) { return w.*section.part; });
      if (more > lost) lost = more, worst = &section;
    }
    const auto ms = [&](int64_t ns) { return static_cast<double>(ns) * 1e-6 / static_cast<double>(steps); };
    lines.push_back(
        fmt::format("rank {} is slow: its own work takes {:.1f} ms a step, its peers' {:.1f} ms; it loses "
                    "most in {}",
                    rank, ms(mine), ms(theirs), worst->name));
  }
  return lines;
}

}  // namespace trivet
