#include "tools/plan/explain.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/config/fields.h"
#include "tools/plan/device_memory.h"

namespace trivet {
namespace {

// A system's costs, without those of a class.
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

using Sets = std::vector<std::string>;

class Switches {
 public:
  explicit Switches(const LegalRun& run) : config_(run.loaded.config), schedule_(run.layout.schedule) {
    add_words();
    add_recompute();
    if (schedule_.p > 1) add_schedules();
    add_sizes();
  }
  std::vector<Explanation::Switch> list;

 private:
  void add(std::string name, Sets sets) { list.push_back({.name = std::move(name), .sets = std::move(sets)}); }
  void add(std::string_view key, std::string_view value) {
    add(fmt::format("{}={}", key.substr(key.find('.') + 1), value), {fmt::format("{}={}", key, value)});
  }

  // The keys that are true, false or a word: each other value in turn.
  void add_words() {
    for (const char* key :
         {"overlap.overlap_grad_reduce", "overlap.overlap_param_gather", "overlap.overlap_p2p_comm",
          "overlap.tp_comm_overlap", "overlap.average_in_collective", "overlap.defer_embedding_wgrad_compute",
          "overlap.align_grad_reduce", "overlap.align_param_gather", "parallel.sequence_parallel",
          "parallel.data_parallel_sharding_strategy", "device.cuda_graph_impl"}) {
      const Field& field = *find_field(key);
      const std::string now = format_field(field, config_);
      std::vector<std::string_view> words = field.words;
      if (words.empty()) words = {"true", "false"};
      for (const std::string_view word : words)
        if (word != now) add(key, word);
    }
    if (config_.parallel.data_parallel_sharding_strategy == Sharding::no_shard)
      add("optim, with gradients and weights overlapped",
          {"parallel.data_parallel_sharding_strategy=optim", "overlap.overlap_grad_reduce=true",
           "overlap.overlap_param_gather=true"});
  }

  void add_recompute() {
    const auto kind = [&](const char* name, const char* granularity, const char* modules, const char* method,
                          int layers) {
      add(name, {fmt::format("model.recompute_granularity={}", granularity),
                 fmt::format("model.recompute_modules={}", modules), fmt::format("model.recompute_method={}", method),
                 fmt::format("model.recompute_num_layers={}", layers)});
    };
    kind("recompute nothing", "none", "core_attn", "none", 0);
    kind("recompute core_attn", "selective", "core_attn", "none", 0);
    kind("recompute core_attn, layernorm, mlp", "selective", "core_attn,layernorm,mlp", "none", 0);
    kind("recompute all, each layer", "full", "core_attn", "uniform", 1);
  }

  void add_schedules() {
    const auto kind = [&](std::string_view name, int v) {
      add(fmt::format("schedule {}, v {}", name, v),
          {fmt::format("parallel.pipeline_schedule={}", name),
           fmt::format("parallel.virtual_pipeline_model_parallel_size={}", v)});
    };
    const int v = schedule_.v;
    if (schedule_.kind == "1f1b" || schedule_.kind == "interleaved") {
      kind("interleaved", 2 * v);
      if (v > 1) kind(v < 4 ? "1f1b" : "interleaved", v / 2);
    } else {
      kind("1f1b", 1);
    }
    for (const auto& [name, chunks] : {std::pair{"zb-h1", 1}, {"zb-v", 2}})
      if (schedule_.kind != name) kind(name, chunks);
  }

  void add_sizes() {
    const auto size = [&](const char* key, int64_t value) { add(key, fmt::to_string(value)); };
    const int64_t b = config_.batch.micro_batch_size, bucket = *config_.parallel.bucket_size;
    size("batch.micro_batch_size", 2 * b);
    if (b % 2 == 0) size("batch.micro_batch_size", b / 2);
    size("parallel.bucket_size", 4 * bucket);
    size("parallel.bucket_size", std::max<int64_t>(1, bucket / 4));
    size("overlap.collectives_in_flight", config_.overlap.collectives_in_flight == 1 ? 2 : 1);
  }

  const Config& config_;
  const Schedule& schedule_;
};

void predict_with(Explanation::Switch& flip, const LegalRun& run, const System& system) {
  try {
    const LegalRun other = legal_run(run.loaded, run.layout.mesh.world(), flip.sets);
    if (to_yaml(other.loaded.config) == to_yaml(run.loaded.config)) {
      flip.refusal = other.layout.notes.empty() ? "is so already" : other.layout.notes.front();
      return;
    }
    const Rehearsal rehearsal = rehearse_on(other.loaded.config, other.layout, system);
    flip.step_seconds = predict_step_seconds(rehearsal, *costs_of(other.loaded.config, other.layout, system));
    flip.memory_bytes = sum_of(memory_of_worst_rank(other.loaded.config, other.layout, system));
  } catch (const ConfigError& error) {
    flip.refusal = error.what();
  }
}

// Of an error's first line what follows its place: the switch has the key.
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

// Rows of less than a thousandth are one.
TextBlock describe(const std::vector<Explanation::PathShare>& path) {
  constexpr double kBar = 40, kLeast = 0.001;  // characters of the whole step; share of a row
  TextBlock table{.title = "critical path of the last step"};
  for (const auto& [name, align] : {std::pair{"operation", 'l'}, {"time", 'r'}, {"share", 'r'}, {"", 'l'}})
    table.column(name, align);
  int64_t all = 0, rest = 0;
  for (const Explanation::PathShare& each : path) all += each.ns;
  const auto share_of = [&](int64_t ns) { return static_cast<double>(ns) / static_cast<double>(all); };
  const auto row = [&](const std::string& what, int64_t ns) {
    table.rows.push_back({what, fmt::format("{:.4g} s", static_cast<double>(ns) * 1e-9), percent_text(share_of(ns)),
                          std::string(static_cast<size_t>(share_of(ns) * kBar + 0.5), '=')});
  };
  for (const Explanation::PathShare& each : path)
    if (share_of(each.ns) >= kLeast) row(each.what, each.ns);
    else rest += each.ns;
  if (rest > 0) row("others", rest);
  return table;
}

std::string gain_text(double now, double then) { return fmt::format("{:+.1f} %", 100 * (1 - then / now) + 0.); }

}  // namespace

std::vector<Explanation::PathShare> critical_path(const Rehearsal& rehearsal, const ReplayCosts& costs) {
  std::map<std::string, int64_t> by_name;
  const Replayed replayed = replay(rehearsal.players, rehearsal.groups, costs, {.critical_path = true});
  for (const PathPart& part : replayed.critical_path) by_name[name_of(part, rehearsal)] += part.end_ns - part.start_ns;
  std::vector<Explanation::PathShare> path;
  for (const auto& [name, ns] : by_name) path.push_back({name, ns});
  std::ranges::stable_sort(path, std::greater<>(), &Explanation::PathShare::ns);
  return path;
}

std::vector<Explanation::Switch> switches_of(const LegalRun& run) { return std::move(Switches(run).list); }

Explanation explain(const LegalRun& run, const System& system,
                    const std::function<void(size_t done, size_t of)>& progress) {
  const std::vector<CostClass> classes = classes_of(run, system);
  const std::unique_ptr<ReplayCosts> costs = costs_of(run.loaded.config, run.layout, system);
  const Rehearsal rehearsal = rehearse_on(run.loaded.config, run.layout, system);
  Explanation e{.step_seconds = predict_step_seconds(rehearsal, *costs),
                .memory_bytes = sum_of(memory_of_worst_rank(run.loaded.config, run.layout, system)),
                .capacity_bytes = device_bytes(system, run.layout.mesh.world()),
                .path = critical_path(rehearsal, *costs),
                .switches = switches_of(run)};
  size_t done = 0;
  const auto next = [&] {
    if (progress) progress(done, classes.size() + e.switches.size());
    ++done;
  };
  for (const CostClass& each : classes) {
    next();
    e.without.push_back({each.what, predict_step_seconds(rehearsal, each.costs)});
  }
  for (Explanation::Switch& each : e.switches) {
    next();
    predict_with(each, run, system);
  }
  std::ranges::stable_sort(e.without, {}, &Explanation::Without::step_seconds);
  std::ranges::stable_sort(e.switches, {},
                           [](const Explanation::Switch& s) { return std::pair(!s.refusal.empty(), s.step_seconds); });
  return e;
}

std::vector<TextBlock> describe(const Explanation& e) {
  std::vector<TextBlock> blocks{describe(e.path)};
  TextBlock without{.title = "if it took no time"};
  for (const auto& [name, align] : {std::pair{"cost", 'l'}, {"step", 'r'}, {"recovers", 'r'}})
    without.column(name, align);
  for (const Explanation::Without& each : e.without)
    without.rows.push_back(
        {each.what, fmt::format("{:.4g} s", each.step_seconds), gain_text(e.step_seconds, each.step_seconds)});
  TextBlock switches{.title = "with another switch"}, refused{.title = "switches that cannot be, or change nothing"};
  for (const auto& [name, align] :
       {std::pair{"switch", 'l'}, {"step", 'r'}, {"recovers", 'r'}, {"memory", 'r'}, {"", 'l'}})
    switches.column(name, align);
  for (const Explanation::Switch& each : e.switches) {
    if (each.refusal.empty())
      switches.rows.push_back(
          {each.name, fmt::format("{:.4g} s", each.step_seconds), gain_text(e.step_seconds, each.step_seconds),
           fmt::format("{:+.2f} GiB", static_cast<double>(each.memory_bytes - e.memory_bytes) / (1 << 30)),
           each.memory_bytes > e.capacity_bytes ? "does not fit" : ""});
    else refused.rows.push_back({each.name, one_line(each.refusal)});
  }
  blocks.insert(blocks.end(), {without, switches});
  if (!refused.rows.empty()) blocks.push_back(refused);
  return blocks;
}

nlohmann::ordered_json json_of(const Explanation& e) {
  nlohmann::ordered_json json{{"step_seconds", e.step_seconds}};
  for (const Explanation::PathShare& each : e.path)
    json["critical_path"].push_back({{"operation", each.what}, {"seconds", static_cast<double>(each.ns) * 1e-9}});
  for (const Explanation::Without& each : e.without)
    json["without"].push_back({{"cost", each.what}, {"step_seconds", each.step_seconds}});
  for (const Explanation::Switch& each : e.switches) {
    nlohmann::ordered_json one{{"switch", each.name}, {"set", each.sets}};
    if (!each.refusal.empty()) one["refusal"] = each.refusal;
    else
      one.update({{"step_seconds", each.step_seconds},
                  {"memory_bytes", each.memory_bytes},
                  {"fits", each.memory_bytes <= e.capacity_bytes}});
    json["switches"].push_back(std::move(one));
  }
  return json;
}

}  // namespace trivet
