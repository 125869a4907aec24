#include "engine/metrics/time_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <functional>

#include "base/statistics.h"

namespace trivet {

void TimeTable::add(const StepStats& of_all_ranks, const StepStats& of_this_rank) {
  if (++steps_ == 2) counted_ = 0, sum_ = own_ = {};
  ++counted_;
  sum_ += of_all_ranks;
  own_ += of_this_rank;
}

namespace {

constexpr size_t kMostRanksShown = 32;  // a longer table is unreadable

TextBlock describe_ranks(std::span<const RankTime> ranks, const StepStats& all, int64_t steps) {
  TextBlock block = {"milliseconds of a step, by rank", {{"", "compute", "optimizer"}}, "lrr"};
  std::vector<size_t> classes;
  for (size_t k = 0; k < kCommClasses.size(); ++k)
    if (all.wire_bytes[k] > 0) classes.push_back(k);
  for (const size_t k : classes)
    for (const char* part : {" exposed", " wait"}) block.rows[0].push_back(std::string(kCommClasses[k]) + part);
  for (const char* name : {"host", "idle", "step"}) block.rows[0].push_back(name);
  block.align.resize(block.rows[0].size(), 'r');
  for (const RankTime& rank : ranks) {
    const StepStats& s = rank.sum;
    std::vector<std::string>& row = block.rows.emplace_back(std::vector{rank.name});
    const auto cell = [&](int64_t ns) {
      row.push_back(fmt::format("{:.2f}", static_cast<double>(ns) * 1e-6 / static_cast<double>(steps)));
    };
    cell(s.compute), cell(s.optimizer);
    for (const size_t k : classes) cell(s.exposed[k]), cell(s.wait[k]);
    cell(s.host), cell(s.idle), cell(s.window);
  }
  return block;
}

struct Section {
  const char* name;
  int64_t StepStats::*part;
};
constexpr std::array kSections = {
    Section{"compute", &StepStats::compute}, Section{"compute (optimizer)", &StepStats::optimizer},
    Section{"data loading (host)", &StepStats::host}, Section{"outside of operations", &StepStats::idle}};

int64_t own_work(const StepStats& stats) { return stats.compute + stats.optimizer + stats.host + stats.idle; }
int64_t exposed(const StepStats& stats) { return StepStats::sum(stats.exposed); }

// The median time of the other ranks in this rank's stage or, if it is alone in its stage, of all others.
template <class Work, class Part>
int64_t usual_beside(size_t rank, const std::vector<Work>& work, const std::vector<int>& stages, Part&& part) {
  std::vector<int64_t> peers, others;
  for (size_t other = 0; other < work.size(); ++other) {
    if (other == rank) continue;
    others.push_back(std::invoke(part, work[other]));
    if (stages[other] == stages[rank]) peers.push_back(others.back());
  }
  return upper_median(std::move(peers.empty() ? others : peers));
}

bool is_slow(int64_t mine, int64_t usual, double factor, int64_t least) {
  return static_cast<double>(mine) > factor * static_cast<double>(usual) && mine - usual >= least;
}

}  // namespace

std::vector<TextBlock> TimeTable::describe(std::span<const RankTime> ranks) const {
  if (counted_ == 0) return {};
  const double rank_steps = static_cast<double>(counted_) * ranks_;
  const auto ms = [&](int64_t ns) { return fmt::format("{:.2f}", static_cast<double>(ns) * 1e-6 / rank_steps); };
  const auto bytes = [&](int64_t n) { return bytes_text(std::llround(static_cast<double>(n) / rank_steps)); };

  const std::string steps =
      counted_ == 1 && steps_ == 1
          ? std::string()  // from a plan
          : fmt::format("{}{} and ", counted(counted_, "step"), counted_ < steps_ ? " (the first is left out)" : "");
  TextBlock time = {
      fmt::format("time of a step, the mean of {}{}", steps, counted(ranks_, "rank")), {{"", "ms", "share"}}, "lrr"};
  const auto row = [&](const char* name, int64_t ns) {
    time.rows.push_back({name, ms(ns), percent_text(sum_.of_window(ns))});
  };
  row("compute", sum_.compute);
  row("optimizer", sum_.optimizer);
  row("exposed", StepStats::sum(sum_.exposed));
  row("wait", StepStats::sum(sum_.wait));
  row("host", sum_.host);
  row("idle", sum_.idle);
  row("step", sum_.window);

  TextBlock comm = {
      "communication of a step",
      {{"", "bytes", "floor ms", "wire ms", "hidden ms", "exposed ms", "shared ms", "wait ms", "overlap"}},
      "lrrrrrrrr"};
  for (size_t k = 0; k < kCommClasses.size(); ++k) {
    if (sum_.wire_bytes[k] == 0) continue;
    const auto overlap = sum_.overlap_ratio(k);
    comm.rows.push_back({std::string(kCommClasses[k]), bytes(sum_.wire_bytes[k]), links_[k] ? ms(sum_.floor[k]) : "-",
                         ms(sum_.wire[k]), ms(sum_.hidden[k]), ms(sum_.exposed[k]),
                         ms(sum_.wire[k] - sum_.hidden[k] - sum_.exposed[k]), ms(sum_.wait[k]),
                         percent_text(overlap.value_or(std::nan("")))});
  }
  std::vector<TextBlock> blocks{time};
  if (comm.rows.size() > 1) blocks.push_back(comm);
  if (ranks.size() > 1 && ranks.size() <= kMostRanksShown) blocks.push_back(describe_ranks(ranks, sum_, counted_));
  return blocks;
}

std::vector<std::string> find_stragglers(const std::vector<StepStats>& work, const std::vector<int>& stages,
                                         int64_t steps, double factor) {
  std::vector<std::string> lines;
  const int64_t least = 1'000'000 * steps;
  for (size_t rank = 0; work.size() > 1 && rank < work.size(); ++rank) {
    const StepStats& own = work[rank];
    const auto usual = [&](auto part) { return usual_beside(rank, work, stages, part); };
    const auto tell = [&](const char* what, int64_t mine, int64_t theirs, const std::string& where) {
      const double ms = 1e-6 / static_cast<double>(steps);
      lines.push_back(
          fmt::format("rank {} is slow: its {} takes {:.1f} ms per step, its peers' {:.1f} ms; it loses most in {}",
                      rank, what, static_cast<double>(mine) * ms, static_cast<double>(theirs) * ms, where));
    };
    // If a transport cannot tell waiting from wire time (NCCL), waiting peers show more wire time and less work.
    const auto busy = [](const StepStats& w) { return own_work(w) + exposed(w); };
    if (std::ranges::count(stages, stages[rank]) > 1 && busy(own) - usual(busy) >= least &&
        is_slow(exposed(own), usual(exposed), factor, least)) {
      const auto worst = std::ranges::max_element(own.exposed) - own.exposed.begin();
      tell("exposed communication", exposed(own), usual(exposed),
           fmt::format("the wire ({})", kCommClasses[static_cast<size_t>(worst)]));
    }
    if (is_slow(own_work(own), usual(own_work), factor, least))
      tell("own work", own_work(own), usual(own_work), std::ranges::max(kSections, {}, [&](const Section& section) {
                                                         return own.*section.part - usual(section.part);
                                                       }).name);
  }
  return lines;
}

std::vector<std::string> find_slow_disks(const std::vector<int64_t>& write_ns, double factor) {
  std::vector<std::string> lines;
  const std::vector<int> one_stage(write_ns.size());
  for (size_t rank = 0; write_ns.size() > 1 && rank < write_ns.size(); ++rank) {
    const int64_t mine = write_ns[rank], usual = usual_beside(rank, write_ns, one_stage, std::identity());
    if (is_slow(mine, usual, factor, 1'000'000'000))
      lines.push_back(fmt::format(
          "rank {} is slow: it wrote its part of the checkpoint in {:.1f} s, its peers in {:.1f} s; it loses most in "
          "the disk",
          rank, static_cast<double>(mine) * 1e-9, static_cast<double>(usual) * 1e-9));
  }
  return lines;
}

}  // namespace trivet
