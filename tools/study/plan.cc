#include "tools/study/plan.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <map>

#include "base/content_hash.h"
#include "base/host_memory.h"
#include "base/statistics.h"
#include "base/text.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/metrics/accounting.h"
#include "engine/train/rank_state.h"
#include "engine/train/run.h"

namespace trivet {
namespace {

// Joins a configuration's problems, one per line, into one line. Drops "--set: ": the study itself passed the value.
std::string one_line(std::string text) {
  for (size_t at; (at = text.find("--set: ")) != std::string::npos;) text.erase(at, 7);
  for (size_t at; (at = text.find('\n')) != std::string::npos;) text.replace(at, 1, "; ");
  return text;
}

// Appends settings as --set accepts them, without the keys of launch.h.
void add_sets(const std::vector<Setting>& settings, std::vector<std::string>& sets) {
  for (const auto& [key, value] : settings)
    if (!is_launch_key(key)) sets.push_back(key + "=" + value);
}

std::vector<std::string> sets_of(const Study& study, Launcher launcher, int64_t steps) {
  std::vector<std::string> sets;
  add_sets(study.set, sets);
  // Drops a learning-rate warm-up of the base that is longer than the run: warming up is not what the study measures.
  if (load_untrained(study.base, sets).config.optimizer.lr_warmup_iters > steps)
    sets.emplace_back("optimizer.lr_warmup_iters=0");
  sets.push_back(fmt::format("comm.backend={}", launcher == Launcher::threads ? "thread" : "mpi"));
  sets.push_back(fmt::format("train.train_iters={}", steps));
  sets.push_back(fmt::format("train.trace={}", study.trace));
  if (std::ranges::count(study.set, "train.eval_interval", &Setting::key) == 0)
    sets.emplace_back("train.eval_interval=0");
  return sets;
}

std::string hash_of(const Study& study, const Point& point, const Config& config) {
  std::vector<std::string> lines;
  for (const Field& field : fields())
    if (field.name != "train.run_dir" && field.section() != "plan" && !is_default(field, config))
      lines.push_back(fmt::format("{}={}\n", field.name, format_field(field, config)));
  std::ranges::sort(lines);
  std::string text = fmt::format("ranks={} launcher={} warmup={}\n", point.launch.ranks, word_of(point.launch.launcher),
                                 study.warmup_steps);
  text += launch_text(point.launch);
  for (const std::string& line : lines) text += line;
  if (study.equal_points) text += fmt::format("copy={}\n", point.choice.back());
  return content_hash(text).substr(0, 16);
}

// Makes compute wait for every communication call. Settings other than communication overlap are kept.
void remove_overlap(Config& config) {
  const OverlapConfig& given = config.overlap;
  OverlapConfig none;
  none.average_in_collective = given.average_in_collective;
  none.defer_embedding_wgrad_compute = given.defer_embedding_wgrad_compute;
  none.wgrad_deferral_limit = given.wgrad_deferral_limit;
  // Both switches are on by default, but have no effect if the parallel size is 1, so their values are then kept.
  none.overlap_p2p_comm = config.parallel.pipeline_model_parallel_size == 1 && given.overlap_p2p_comm;
  none.overlap_cp_comm = config.parallel.context_parallel_size == 1 && given.overlap_cp_comm;
  config.overlap = none;
}

std::string numbers_of(const Study& study, const Choice& choice) {
  std::string text;
  for (size_t i = 0; i < choice.size(); ++i)
    if (study.factors[i].changes_numbers) text += fmt::format("{}:{} ", i, choice[i]);
  return text;
}

// Removes from `levels` the settings that resolve() found to have no effect. Returns why they have none.
std::string remove_inert(std::vector<std::string>& levels, const LoadedConfig& loaded, const Layout& layout) {
  std::string why;
  std::erase_if(levels, [&](const std::string& level) {
    const std::string key = level.substr(0, level.find('='));
    if (loaded.origins.at(key).kind != Origin::derived) return false;
    for (const std::string& note : layout.notes)
      if (note.find(key + ": ") != std::string::npos) why += (why.empty() ? "" : "; ") + note;
    return true;
  });
  return one_line(std::move(why));
}

// CPU threads of all ranks that compute at the same time on this machine; 0 if ranks may be on other hosts. A rank with
// a GPU counts as one thread, which enqueues its work.
int compute_threads(const Config& config, const Launch& launch) {
  const auto names_hosts = [](const std::string& argument) {
    return argument == "-H" || argument.find("host") != std::string::npos;
  };
  const bool here = launch.on_this_machine() ||
                    (launch.launcher == Launcher::mpirun && std::ranges::none_of(launch.arguments, names_hosts));
  const bool gpu = config.device.kind == DeviceKind::cuda;
  return here ? launch.ranks * (gpu ? 1 : std::max(1, config.device.threads_per_rank)) : 0;
}

// `inert` receives the reasons why settings of its levels were dropped.
Point resolve_point(const Study& study, const Choice& choice, std::string& inert) {
  Point point;
  point.choice = choice;
  point.launch = launch_of(study, choice);
  int& ranks = point.launch.ranks;
  std::vector<std::string> levels;
  for (size_t i = 0; i < choice.size(); ++i) add_sets(study.factors[i].levels[choice[i]].settings, levels);
  const auto iters =
      std::ranges::find_if(levels, [](const auto& set) { return set.starts_with("train.train_iters="); });
  point.steps = iters == levels.end() ? study.steps : parse_sets({&*iters, 1}).train.train_iters;
  if (iters != levels.end()) levels.erase(iters);
  if (point.steps <= study.warmup_steps)
    throw ConfigError(fmt::format("train.train_iters: {} leaves none to measure after warmup_steps ({})", point.steps,
                                  study.warmup_steps));
  point.sets = sets_of(study, point.launch.launcher, point.steps);
  LoadedConfig loaded = load_config(study.base, point.sets, levels);
  if (ranks == 0) ranks = ranks_of_one_replica(loaded.config);
  const Layout layout = resolve(loaded, facts_of(loaded.config, ranks));
  inert = remove_inert(levels, loaded, layout);
  point.sets.insert(point.sets.end(), levels.begin(), levels.end());
  const Config& config = loaded.config;
  const ToolSection* const director = directing_section(config);
  if (config.train.skip_train || director)
    throw ConfigError(fmt::format("{}: a study measures training steps, so leave it out",
                                  director ? director->directing_key : "train.skip_train"));
  point.threads = compute_threads(config, point.launch);
  const auto [largest, all_ranks] = planned_bytes(config, layout);
  point.memory_bytes = largest;
  if (const MemoryLimit limit = memory_limit(); point.launch.on_this_machine() && all_ranks > limit.bytes)
    throw ConfigError(
        fmt::format("needs {} of memory on its {} ranks, but {}", bytes_text(all_ranks), ranks, to_string(limit)));
  if (const std::string problem = launch_problem(point.launch, config); !problem.empty()) throw ConfigError(problem);
  const ModelSpec model = model_spec_of(config.model);
  const auto samples = static_cast<double>(point.steps * *config.batch.global_batch_size);
  point.flops = samples * flops_per_step(model, 1, config.train.flops_convention);
  point.parameters = static_cast<double>(count_parameters(model).total());
  point.tokens = samples * static_cast<double>(config.model.seq_length);
  point.numbers = numbers_of(study, choice);
  point.id = hash_of(study, point, config);
  Config other = config;
  remove_overlap(other);
  point.without_overlap = hash_of(study, point, other);
  return point;
}

}  // namespace

Plan make_plan(const Study& study) {
  if (!std::filesystem::exists(study.base))
    throw ConfigError(
        fmt::format("{}: base: {} does not exist (the path is relative to the study's file)", study.path, study.base));
  if (!study.factors.empty() && !study.equal_points && std::ranges::all_of(study.factors, &Factor::condition))
    throw ConfigError(study.path +
                      ": factors: all are conditions, so there is nothing to compare; expected at least one without "
                      "condition: true");
  Plan plan;
  for (const Choice& choice : design_points(study)) {
    try {
      std::string inert;
      Point point = resolve_point(study, choice, inert);
      const auto same = std::ranges::find(plan.points, point.id, &Point::id);
      if (same == plan.points.end()) plan.points.push_back(std::move(point));
      else plan.same.push_back({choice, static_cast<size_t>(same - plan.points.begin()), inert});
    } catch (const ConfigError& error) {
      plan.dropped.push_back({choice, one_line(error.what())});
    }
  }
  plan.baseline = plan.find(study.baseline());
  for (const Point& point : plan.points) {
    const Choice wanted = study.baseline_of(point.choice);
    const auto first = std::ranges::find_if(
        plan.points, [&](const Point& other) { return study.baseline_of(other.choice) == wanted; });
    plan.baselines.push_back(plan.find(wanted).value_or(static_cast<size_t>(first - plan.points.begin())));
  }
  return plan;
}

std::optional<size_t> Plan::find(const Choice& choice) const {
  if (const auto found = std::ranges::find(points, choice, &Point::choice); found != points.end())
    return static_cast<size_t>(found - points.begin());
  const auto found = std::ranges::find(same, choice, &SamePoint::choice);
  return found == same.end() ? std::nullopt : std::optional(found->point);
}

Study equal_points_of(const Study& study, const Plan& plan) {
  Study equal = study;
  equal.predict.clear();
  equal.name += "-aa";
  equal.out += "/aa";
  equal.design = Design::grid;
  equal.equal_points = true;
  equal.repeats = std::max(kFewestRounds, study.auto_repeats ? 0 : study.repeats);
  equal.auto_repeats = false;
  const Choice of = plan.baseline ? study.baseline() : plan.points.at(0).choice;
  for (size_t i = 0; i < of.size(); ++i)
    equal.factors[i].levels = {study.factors[i].levels[of[i]]}, equal.factors[i].baseline = 0;
  const auto others = static_cast<int64_t>(plan.points.size()) - 1;
  Factor copies;
  copies.name = "equal points";
  copies.changes_numbers = false;
  for (int64_t copy = 0; copy <= std::clamp<int64_t>(others, 1, study.baseline_every); ++copy)
    copies.levels.push_back({std::to_string(copy), {}});
  equal.factors.push_back(std::move(copies));
  return equal;
}

std::vector<double> run_seconds(const Plan& plan, std::span<const RunRow> rows) {
  std::vector<double> seconds, speeds;  // speeds: seconds per FLOP of each measured point
  for (const Point& point : plan.points) {
    std::vector<double> measured;
    for (const RunRow& row : rows)
      if (row.point == point.id && row.outcome == RunEnd::done) measured.push_back(row.seconds);
    seconds.push_back(median(measured));
    if (!measured.empty()) speeds.push_back(seconds.back() / point.flops);
  }
  for (size_t i = 0; i < plan.points.size(); ++i)
    if (std::isnan(seconds[i])) seconds[i] = plan.points[i].flops * median(speeds);
  return seconds;
}

}  // namespace trivet
