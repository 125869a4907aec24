#include "tools/plan/ablate.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/plan/device_memory.h"

namespace trivet {
namespace {

// A system's costs with one cost class set to zero.
class CostsWithout : public ReplayCosts {
 public:
  explicit CostsWithout(std::unique_ptr<ReplayCosts> costs) : costs_(std::move(costs)) {}
  int64_t work_ns(const TapeWork& work, bool in_graph) const override {
    const bool is_free = (free_work && free_work(work)) || work.category == free_calls;  // a copy between threads
    return is_free ? 0 : costs_->work_ns(work, in_graph);
  }
  CallCost call_cost(const TapeCall& call, const TapeGroups::Group& group) const override {
    return group.category == free_calls ? CallCost{} : costs_->call_cost(call, group);
  }
  int64_t host_ns(const TapeRecord& record) const override { return free_host ? 0 : costs_->host_ns(record); }
  bool buffered_sends() const override { return costs_->buffered_sends(); }
  double slowdown() const override { return costs_->slowdown(); }
  int threads() const override { return costs_->threads(); }
  double core_rate(int64_t busy_threads) const override { return costs_->core_rate(busy_threads); }

  bool (*free_work)(const TapeWork&) = nullptr;
  std::optional<Category> free_calls;
  bool free_host = false;

 private:
  std::unique_ptr<ReplayCosts> costs_;
};

struct CostClass {
  std::string what;
  CostsWithout costs;
};

std::vector<CostClass> classes_of(const LegalRun& run, const System& system) {
  std::vector<CostClass> classes;
  const auto add = [&](std::string what, const System& of) -> CostsWithout& {
    return classes.emplace_back(CostClass{std::move(what), CostsWithout(costs_of(run.loaded.config, run.layout, of))})
        .costs;
  };
  add("GEMMs", system).free_work = [](const TapeWork& work) { return work.kind == TapeWork::gemm; };
  add("attention", system).free_work = [](const TapeWork& work) { return work.kind == TapeWork::attention; };
  add("memory-bound operations", system).free_work = [](const TapeWork& work) {
    return (work.kind == TapeWork::memory || work.kind == TapeWork::loss) && work.category == Category::compute;
  };
  add("the optimizer", system).free_work = [](const TapeWork& work) { return work.category == Category::optimizer; };
  add("copies to and from the host", system).free_work = [](const TapeWork& work) {
    return work.kind == TapeWork::copy && !is_comm(work.category);
  };
  for (const std::string_view comm : kCommClasses)
    add(fmt::format("{} communication", comm), system).free_calls = comm_of(comm);
  System changed = system;
  changed.contention = 1;
  if (system.kind() == SystemKind::cpu) {
    add("cores that slow each other", changed);
    changed = system, changed.wake_us = changed.team_us = 0;
    add("waking threads", changed);
    return classes;
  }
  add("compute slowed by communication", changed);
  add("the host's launches", system).free_host = true;
  changed = system, changed.nvlink_us = changed.network_us = changed.collective_us = 0;
  add("latencies of links and collectives", changed);
  changed = system, changed.kernel_us = 0;
  add("fixed costs of kernels", changed);
  return classes;
}

void predict_with(Ablation::Switched& flip, const LegalRun& run, const System& system) {
  try {
    const LegalRun other = legal_run(run.loaded, run.layout.mesh.world(), flip.how.sets);
    if (to_yaml(other.loaded.config) == to_yaml(run.loaded.config)) {
      flip.refusal = other.layout.notes.empty() ? "already set" : other.layout.notes.front();
      return;
    }
    const Rehearsal rehearsal = rehearse_on(other.loaded.config, other.layout, system);
    flip.step_seconds = predict_step_seconds(rehearsal, *costs_of(other.loaded.config, other.layout, system));
    flip.memory_bytes = sum_of(memory_of_worst_rank(other.loaded.config, other.layout, system));
  } catch (const ConfigError& error) {
    flip.refusal = error.what();
  }
}

// An error's first line without its location, because the switch already names the key.
std::string one_line(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  return line.starts_with("--set: ") ? line.substr(7) : line;
}

std::string name_of(const PathPart& part, const Rehearsal& rehearsal) {
  if (part.record == PathPart::kHost) return "the host's launches";
  const Player& player = rehearsal.players[static_cast<size_t>(part.player)];
  const TapeRecord& record = player.tape->records[part.record];
  if (record.kind != TapeRecord::call) return player.tape->works[record.what].name;
  const TapeCall& call = player.tape->calls[record.what];
  const Category category = rehearsal.groups[player.groups[static_cast<size_t>(call.group)]].category;
  return fmt::format("{} ({})", call.name, kCommClasses[class_of(category)]);
}

// Merges rows below a thousandth of the path.
TextBlock describe(const std::vector<Ablation::PathShare>& path) {
  constexpr double kBar = 40, kLeast = 0.001;  // characters for the whole path; a row's smallest share
  TextBlock table{.title = "critical path of the last step"};
  for (const auto& [name, align] : {std::pair{"operation", 'l'}, {"time", 'r'}, {"share", 'r'}, {"", 'l'}})
    table.column(name, align);
  int64_t all = 0, rest = 0;
  for (const Ablation::PathShare& each : path) all += each.ns;
  const auto share_of = [&](int64_t ns) { return static_cast<double>(ns) / static_cast<double>(all); };
  const auto row = [&](const std::string& what, int64_t ns) {
    table.rows.push_back({what, fmt::format("{:.4g} s", static_cast<double>(ns) * 1e-9), percent_text(share_of(ns)),
                          std::string(static_cast<size_t>(share_of(ns) * kBar + 0.5), '=')});
  };
  for (const Ablation::PathShare& each : path)
    if (share_of(each.ns) >= kLeast) row(each.what, each.ns);
    else rest += each.ns;
  if (rest > 0) row("others", rest);
  return table;
}

std::string gain_text(double now, double then) { return fmt::format("{:+.1f} %", 100 * (1 - then / now) + 0.); }

}  // namespace

std::vector<Ablation::PathShare> critical_path(const Rehearsal& rehearsal, const ReplayCosts& costs) {
  std::map<std::string, int64_t> by_name;
  const Replayed replayed = replay(rehearsal.players, rehearsal.groups, costs, {.critical_path = true});
  for (const PathPart& part : replayed.critical_path) by_name[name_of(part, rehearsal)] += part.end_ns - part.start_ns;
  std::vector<Ablation::PathShare> path;
  for (const auto& [name, ns] : by_name) path.push_back({name, ns});
  std::ranges::stable_sort(path, std::greater<>(), &Ablation::PathShare::ns);
  return path;
}

Ablation ablate(const LegalRun& run, const System& system,
                const std::function<void(size_t done, size_t of)>& progress) {
  const std::vector<CostClass> classes = classes_of(run, system);
  const std::unique_ptr<ReplayCosts> costs = costs_of(run.loaded.config, run.layout, system);
  const Rehearsal rehearsal = rehearse_on(run.loaded.config, run.layout, system);
  Ablation a{.step_seconds = predict_step_seconds(rehearsal, *costs),
             .memory_bytes = sum_of(memory_of_worst_rank(run.loaded.config, run.layout, system)),
             .capacity_bytes = device_bytes(system, run.layout.mesh.world()),
             .path = critical_path(rehearsal, *costs)};
  for (Switch& one : switches_of(run.loaded.config, run.layout)) a.switches.push_back({std::move(one)});
  size_t done = 0;
  const auto next = [&] {
    if (progress) progress(done, classes.size() + a.switches.size());
    ++done;
  };
  for (const CostClass& each : classes) {
    next();
    a.without.push_back({each.what, predict_step_seconds(rehearsal, each.costs)});
  }
  for (Ablation::Switched& each : a.switches) {
    next();
    predict_with(each, run, system);
  }
  std::ranges::stable_sort(a.without, {}, &Ablation::Without::step_seconds);
  std::ranges::stable_sort(a.switches, {},
                           [](const Ablation::Switched& s) { return std::pair(!s.refusal.empty(), s.step_seconds); });
  return a;
}

Ablation compare(const LoadedConfig& a, const LoadedConfig& b, int ranks, const System& system) {
  const LegalRun run = legal_run(a, ranks);
  const Prediction now = predict(run.loaded.config, run.layout, system);
  Ablation found{now.step.step_seconds, now.memory_bytes, now.capacity_bytes};
  std::vector<std::string> all;
  for (const auto& [key, in_a, in_b] : differences(a.config, b.config)) {
    const std::string set = fmt::format("{}={}", key, in_b);
    found.switches.push_back({{set, {set}}});
    all.push_back(set);
  }
  found.switches.push_back({{"all of them", all}});
  for (Ablation::Switched& each : found.switches) predict_with(each, {a, run.layout}, system);
  return found;
}

std::vector<TextBlock> describe(const Ablation& a) {
  std::vector<TextBlock> blocks;
  if (!a.path.empty()) blocks.push_back(describe(a.path));
  TextBlock without{.title = "if its cost were zero"};
  for (const auto& [name, align] : {std::pair{"cost", 'l'}, {"step", 'r'}, {"recovers", 'r'}})
    without.column(name, align);
  for (const Ablation::Without& each : a.without)
    without.rows.push_back(
        {each.what, fmt::format("{:.4g} s", each.step_seconds), gain_text(a.step_seconds, each.step_seconds)});
  TextBlock switches{.title = a.path.empty()
                                  ? fmt::format("a step of {:.4g} s, with one value of the other run", a.step_seconds)
                                  : "with one switch changed"},
      refused{.title = "switches that are invalid or without effect"};
  for (const auto& [name, align] :
       {std::pair{"switch", 'l'}, {"step", 'r'}, {"recovers", 'r'}, {"memory", 'r'}, {"", 'l'}})
    switches.column(name, align);
  for (const Ablation::Switched& each : a.switches) {
    if (each.refusal.empty())
      switches.rows.push_back(
          {each.how.name, fmt::format("{:.4g} s", each.step_seconds), gain_text(a.step_seconds, each.step_seconds),
           fmt::format("{:+.2f} GiB", static_cast<double>(each.memory_bytes - a.memory_bytes) / (1 << 30)),
           each.memory_bytes > a.capacity_bytes ? "does not fit" : ""});
    else refused.rows.push_back({each.how.name, one_line(each.refusal)});
  }
  if (!a.without.empty()) blocks.push_back(without);
  blocks.push_back(switches);
  if (!refused.rows.empty()) blocks.push_back(refused);
  return blocks;
}

nlohmann::ordered_json json_of(const Ablation& a) {
  nlohmann::ordered_json json{{"step_seconds", a.step_seconds}};
  for (const Ablation::PathShare& each : a.path)
    json["critical_path"].push_back({{"operation", each.what}, {"seconds", static_cast<double>(each.ns) * 1e-9}});
  for (const Ablation::Without& each : a.without)
    json["without"].push_back({{"cost", each.what}, {"step_seconds", each.step_seconds}});
  for (const Ablation::Switched& each : a.switches) {
    nlohmann::ordered_json one{{"switch", each.how.name}, {"set", each.how.sets}};
    if (!each.refusal.empty()) one["refusal"] = each.refusal;
    else
      one.update({{"step_seconds", each.step_seconds},
                  {"memory_bytes", each.memory_bytes},
                  {"fits", each.memory_bytes <= a.capacity_bytes}});
    json["switches"].push_back(std::move(one));
  }
  return json;
}

}  // namespace trivet
