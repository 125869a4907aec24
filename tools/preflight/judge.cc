#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/statistics.h"
#include "tools/preflight/preflight.h"

namespace trivet {
namespace {

constexpr double kMostClockMs = 100;  // hosts synchronised by NTP differ by a few ms
constexpr size_t kMostRanksShown = 64;

// The median; NaN, which makes comparisons false, if ranks are not compared or there are fewer than 3 values or links.
double usual_of(const Preflight& p, size_t number) {
  std::vector<double> values;
  for (const Preflight::Numbers& rank : p.typical)
    if (!std::isnan(rank[number])) values.push_back(rank[number]);
  const auto links = std::ranges::count(p.links, number, &Preflight::Link::kind);
  if (kMetricKinds[number].least == 0 || values.size() < 3 || links == 1 || links == 2) return std::nan("");
  return median(std::move(values));
}

std::string name_of(const Preflight& p, size_t rank) { return fmt::format("rank {} on {}", rank, p.hosts[rank]); }

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
    const auto is_slow = [&](size_t rank) {
      const auto is_end = [&](const Preflight::Link& x) { return x.kind == number && (x.a == rank || x.b == rank); };
      // If the rank has a single link, the link is named instead.
      return p.best[rank][number] < least && std::ranges::count_if(p.links, is_end) != 1;
    };
    for (const auto& [a, b, kind, rate] : p.links)
      if (kind == number && rate < least && !is_slow(a) && !is_slow(b))
        tell(fmt::format("link of {} and {}", name_of(p, a), name_of(p, b)), rate);
    for (size_t rank = 0; rank < p.best.size(); ++rank) {
      const double value = p.best[rank][number];
      if (is_slow(rank)) tell(name_of(p, rank) + (number == kInHost || number == kNetwork ? ", all links" : ""), value);
      if (number == kClock && std::abs(value) > kMostClockMs)
        slow.push_back(fmt::format("{}: its clock is {:.3f} s {} rank 0's; expected hosts that follow NTP",
                                   name_of(p, rank), 1e-3 * std::abs(value), value > 0 ? "ahead of" : "behind"));
      if (number == kErrors && value > 0)
        slow.push_back(fmt::format("{}: its GPU has had {:.0f} memory errors (ECC) that could not be corrected",
                                   name_of(p, rank), value));
    }
  }
  return slow;
}

TextBlock table_of(const Preflight& p) {
  TextBlock block{.title = "preflight"};
  std::vector<size_t> shown;
  for (size_t number = 0; number < kMetrics; ++number)
    if (std::ranges::any_of(p.best, [&](const auto& rank) { return !std::isnan(rank[number]); }))
      shown.push_back(number);
  const auto row = [&](const std::string& rank, const std::string& host, auto&& cell) {
    block.rows.push_back({rank, host});
    for (const size_t number : shown) block.rows.back().push_back(cell(number));
  };
  const auto text = [](double value) { return std::isnan(value) ? "" : fmt::format("{:.4g}", value); };
  row("rank", "host", [](size_t number) { return kMetricKinds[number].heading; });
  row("", "", [](size_t number) { return kMetricKinds[number].unit; });
  for (size_t rank = 0; rank < std::min(p.best.size(), kMostRanksShown); ++rank)
    row(std::to_string(rank), shortened(p.hosts[rank], 16), [&](size_t number) { return text(p.best[rank][number]); });
  if (p.best.size() > 2) row("", "median", [&](size_t number) { return text(usual_of(p, number)); });
  block.align = "rl" + std::string(shown.size(), 'r');
  return block;
}

nlohmann::ordered_json json_of(const Preflight& p) {
  nlohmann::ordered_json json = {{"slow", slow_parts(p)}, {"failed", p.failed}};
  for (const auto& [a, b, kind, rate] : p.links)
    json["links"].push_back({{"ranks", {a, b}}, {kMetricKinds[kind].key, rate}});
  for (size_t rank = 0; rank < p.best.size(); ++rank) {
    nlohmann::ordered_json& row = json["ranks"].emplace_back();
    row["host"] = p.hosts[rank];
    for (size_t number = 0; number < kMetrics; ++number) row[kMetricKinds[number].key] = p.best[rank][number];
  }
  return json;
}

}  // namespace trivet
