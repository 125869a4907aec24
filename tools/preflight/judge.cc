#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/statistics.h"
#include "tools/preflight/preflight.h"

namespace trivet {
namespace {

constexpr double kMostClockMs = 100;  // hosts that follow NTP differ by a few
constexpr size_t kMostRanksShown = 64;

// NaN, than which nothing is less, of fewer than three.
double usual_of(const Preflight& p, size_t number) {
  std::vector<double> values;
  for (const Preflight::Numbers& rank : p.typical)
    if (!std::isnan(rank[number])) values.push_back(rank[number]);
  return values.size() < 3 ? std::nan("") : median(std::move(values));
}

std::string name_of(const Preflight& p, size_t rank) { return fmt::format("rank {} on {}", rank, p.hosts[rank]); }

// tell(who, its rate): of links of one kind.
template <class Tell>
void judge_links(const Preflight& p, size_t number, double least, Tell&& tell) {
  const size_t ranks = p.best.size();
  std::vector<size_t> links(ranks);                 // [rank] of this kind
  std::vector<std::vector<size_t>> slow_of(ranks);  // [rank] the peers of those that are slow
  for (size_t a = 0; a < ranks; ++a)
    for (size_t b = 0; b < ranks; ++b) {
      const double rate = p.links[a * ranks + b];
      if (rate == 0 || (p.hosts[a] == p.hosts[b]) != (number == kInHost)) continue;
      if (++links[a]; rate < least) slow_of[a].push_back(b);
    }
  if (std::accumulate(links.begin(), links.end(), size_t{0}) < 2 * 3) return;  // each is two ranks'
  const auto all_slow = [&](size_t rank) { return links[rank] > 1 && slow_of[rank].size() == links[rank]; };
  for (size_t a = 0; a < ranks; ++a) {
    if (all_slow(a)) tell(name_of(p, a) + ", all links", p.best[a][number]);
    for (const size_t b : slow_of[a])
      if (a < b && !all_slow(a) && !all_slow(b))
        tell(fmt::format("link of {} and {}", name_of(p, a), name_of(p, b)), p.links[a * ranks + b]);
  }
}

}  // namespace

std::vector<std::string> slow_parts(const Preflight& p) {
  std::vector<std::string> slow;
  for (size_t number = 0; number < kMetrics; ++number) {
    const auto& [key, heading, unit, share] = kMetricKinds[number];
    const double usual = usual_of(p, number), least = share * usual;
    const auto tell = [&, heading = heading, unit = unit](const std::string& who, double value) {
      slow.push_back(fmt::format("{}: {} {:.4g} {}, {} of the median {:.4g}", who, heading, value, unit,
                                 percent_text(value / usual), usual));
    };
    if (number == kInHost || number == kNetwork) judge_links(p, number, least, tell);
    for (size_t rank = 0; rank < p.best.size(); ++rank)
      if (const double value = p.best[rank][number]; number == kClock && std::abs(value) > kMostClockMs)
        slow.push_back(fmt::format("{}: its clock is {:.3f} s {} rank 0's; expected hosts that follow NTP",
                                   name_of(p, rank), 1e-3 * std::abs(value), value > 0 ? "ahead of" : "behind"));
      else if (number == kErrors && value > 0)
        slow.push_back(fmt::format("{}: its GPU has had {:.0f} memory errors (ECC) that could not be corrected",
                                   name_of(p, rank), value));
      else if (number != kInHost && number != kNetwork && value < least) tell(name_of(p, rank), value);
  }
  return slow;
}

TextBlock table_of(const Preflight& p) {
  TextBlock block{.title = "preflight"};
  block.column("rank", 'r'), block.column("host", 'l');
  block.rows.resize(2 + std::min(p.best.size(), kMostRanksShown), {""});
  block.rows[1].push_back("");
  for (size_t rank = 0; rank + 2 < block.rows.size(); ++rank)
    block.rows[rank + 2] = {std::to_string(rank), shortened(p.hosts[rank], 16)};
  for (size_t number = 0; number < kMetrics; ++number) {
    if (std::ranges::all_of(p.best, [&](const auto& rank) { return std::isnan(rank[number]); })) continue;
    block.column(kMetricKinds[number].heading, 'r');
    block.rows[1].push_back(kMetricKinds[number].unit);
    for (size_t row = 2; row < block.rows.size(); ++row)
      block.rows[row].push_back(fmt::format("{:.4g}", p.best[row - 2][number]));
  }
  return block;
}

nlohmann::ordered_json json_of(const Preflight& p) {
  nlohmann::ordered_json json = {{"slow", slow_parts(p)}, {"failed", p.failed}, {"links_gbit_per_s", p.links}};
  for (size_t rank = 0; rank < p.best.size(); ++rank) {
    nlohmann::ordered_json& row = json["ranks"].emplace_back();
    row["host"] = p.hosts[rank];
    for (size_t number = 0; number < kMetrics; ++number) row[kMetricKinds[number].key] = p.best[rank][number];
  }
  return json;
}

}  // namespace trivet
