#include "tools/plan/search_report.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fmt/ranges.h>
#include <limits>
#include <set>

#include "base/json.h"
#include "engine/config/fields.h"

namespace trivet {
namespace {

struct Share {
  std::string what;
  double of_step = 0;
};

// A step's overheads, including recomputation, largest first.
std::vector<Share> losses_of(const Candidate& candidate) {
  const StepStats& stats = candidate.prediction.step.stats;
  std::vector<Share> shares = {{"bubble", stats.bubble_fraction()},
                               {"optimizer", stats.of_window(stats.optimizer)},
                               {"host", stats.of_window(stats.host)},
                               {"recompute", candidate.recompute_share * stats.of_window(stats.compute)}};
  for (size_t k = 0; k < kCommClasses.size(); ++k) {
    const bool pipeline = kCommClasses[k] == "pipeline";  // its waits are the bubble
    shares.push_back(
        {std::string(kCommClasses[k]), stats.of_window(stats.exposed[k] + (pipeline ? 0 : stats.wait[k]))});
  }
  std::ranges::stable_sort(shares, std::greater(), &Share::of_step);
  return shares;
}

std::string losses_text(const Candidate& candidate) {
  std::string text;
  for (const auto& [what, share] : losses_of(candidate))
    if (share >= 0.005) text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", what, 100 * share);
  return text;
}

std::string recompute_text(const ModelConfig& m) {
  if (m.recompute_granularity == RecomputeGranularity::none) return "none";
  if (m.recompute_granularity == RecomputeGranularity::full)
    return fmt::format("{} {}", word_of(m.recompute_method), m.recompute_num_layers);
  std::vector<std::string_view> modules;
  for (const RecomputeModule module : m.recompute_modules) modules.push_back(word_of(module));
  return fmt::format("{}", fmt::join(modules, "+"));
}

TextBlock layout_table(std::string title) {
  TextBlock table{.title = std::move(title)};
  for (const char* name : {"s/step", "MFU", "memory", "t", "p", "d", "v", "micro-batch"}) table.column(name, 'r');
  for (const char* name : {"schedule", "recompute", "sharding"}) table.column(name, 'l');
  return table;
}

std::vector<std::string> layout_cells(const Candidate& candidate) {
  const Config& c = candidate.open.config;
  const ParallelConfig& parallel = c.parallel;
  const Prediction& prediction = candidate.prediction;
  const int t = parallel.tensor_model_parallel_size, p = parallel.pipeline_model_parallel_size;
  return {fmt::format("{:.4g}", prediction.step.step_seconds),
          fmt::format("{:.1f}%", 100 * prediction.step.mfu),
          bytes_text(prediction.memory_bytes),
          fmt::format("{}{}", t, parallel.sequence_parallel ? " sp" : ""),
          std::to_string(p),
          std::to_string(prediction.step.ranks / (t * parallel.context_parallel_size * p)),
          std::to_string(candidate.chunks),
          std::to_string(c.batch.micro_batch_size),
          parallel.pipeline_schedule,
          recompute_text(c.model),
          std::string(word_of(parallel.data_parallel_sharding_strategy))};
}

}  // namespace

std::vector<const Candidate*> pareto_of(const std::vector<Candidate>& found) {
  std::vector<const Candidate*> front;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Candidate& candidate : found)
    if (candidate.prediction.memory_bytes < least)
      least = candidate.prediction.memory_bytes, front.push_back(&candidate);
  return front;
}

std::vector<TextBlock> describe(const SearchResult& result, size_t count) {
  TextBlock best = layout_table("the fastest layouts that fit");
  best.column("lost to", 'l');
  for (const Candidate& candidate : result.found) {
    if (best.rows.size() > count) break;
    best.rows.push_back(layout_cells(candidate));
    best.rows.back().push_back(losses_text(candidate));
  }
  TextBlock front = layout_table("less memory for more time");
  for (const Candidate* candidate : pareto_of(result.found)) front.rows.push_back(layout_cells(*candidate));
  return {best, front};
}

TextBlock changes_of(const Candidate& candidate) {
  TextBlock block{.title = "changes from the input configuration"};
  for (const std::string& set : candidate.sets) {
    const size_t equals = set.find('=');
    block.rows.push_back({set.substr(0, equals), set.substr(equals + 1)});
  }
  if (block.rows.empty()) block.rows.push_back({"nothing"});
  return block;
}

std::string extent_of(const SearchResult& r, size_t count) {
  std::string text = fmt::format(
      "{}: {} break the engine's rules, {} are too large for the memory, {} recompute more than their memory "
      "requires; {} rehearsed, {} excluded by their bounds, {} not visited.",
      counted(r.layouts, "layout"), grouped(r.illegal), grouped(r.too_large), grouped(r.dominated),
      grouped(r.rehearsed), grouped(r.pruned), grouped(r.not_visited));
  if (r.unbounded > 0) {
    text +=
        fmt::format(" Time ran out before {} had a bound: nothing is known about them.", counted(r.unbounded, "shape"));
  } else if (r.left_seconds > 0) {
    text += fmt::format(" With the switches that the search began with, no remaining layout can beat {:.4g} s{}.",
                        r.left_seconds, r.ended ? fmt::format(", so that none is among the best {}", count) : "");
  }
  if (r.refined > 0)
    text += fmt::format(" Overlaps and buckets were then changed one by one in the best {}.",
                        r.refined == 1 ? "one" : std::to_string(r.refined));
  return text;
}

std::string to_json(const SearchResult& r, const System& system, const std::string& out, size_t count) {
  const auto of_candidate = [](const Candidate& candidate) {
    const Prediction& p = candidate.prediction;
    nlohmann::ordered_json json = {{"step_seconds", p.step.step_seconds},
                                   {"bound_seconds", candidate.bound_seconds},
                                   {"tokens_per_second_per_rank", p.step.tokens_per_second / p.step.ranks},
                                   {"mfu", p.step.mfu},
                                   {"memory_bytes", p.memory_bytes}};
    for (const auto& [what, share] : losses_of(candidate)) json["lost"][what] = share;
    json["set"] = candidate.sets;
    return json;
  };
  nlohmann::ordered_json json = {{"system", system.name}, {"ranks", r.found.front().prediction.step.ranks}};
  for (size_t i = 0; i < std::min(count, r.found.size()); ++i) json["best"].push_back(of_candidate(r.found[i]));
  for (const Candidate* candidate : pareto_of(r.found)) json["pareto"].push_back(of_candidate(*candidate));
  json.update({{"layouts", r.layouts},
               {"illegal", r.illegal},
               {"too_large", r.too_large},
               {"dominated", r.dominated},
               {"rehearsed", r.rehearsed},
               {"pruned", r.pruned},
               {"not_visited", r.not_visited},
               {"shapes_without_a_bound", r.unbounded},
               {"left_seconds", r.left_seconds},
               {"ended", r.ended},
               {"refined", r.refined},
               {"out", out}});
  return json.dump(2) + '\n';
}

std::string study_of(const SearchResult& r, const LoadedConfig& run, const System& system, const std::string& path,
                     size_t count) {
  const std::filesystem::path file = path;
  const int ranks = r.found.front().prediction.step.ranks;
  std::string name = file.stem().string();
  std::ranges::replace_if(
      name, [](unsigned char c) { return !std::isalnum(c) && c != '-'; }, '_');
  std::string text = fmt::format(
      "# The fastest layouts of {0} on {1} ranks of {2}, as trivet plan --search predicts them.\n\n"
      "name: {3}\nbase: {4}\nranks: {1}\n",
      run.path, ranks, system.name, name,
      nlohmann::json(std::filesystem::proximate(run.path, std::filesystem::absolute(file).parent_path()).string())
          .dump());
  if (system.kind() == SystemKind::gpu && ranks > system.gpus_per_node) text += "launcher: srun\n";
  std::set<std::string, std::less<>> given(run.left_to_planner.begin(), run.left_to_planner.end());  // not in the file
  for (const auto& [key, origin] : run.origins)
    if (origin.kind == Origin::set) given.insert(key);
  text += "factors:\n  - name: layout\n    levels:\n";
  for (size_t i = 0; i < std::min(count, r.found.size()); ++i) {
    std::set<std::string, std::less<>> keys = given;
    for (const std::string& set : r.found[i].sets) keys.insert(set.substr(0, set.find('=')));
    text += fmt::format("      {}, planned {:.4g} s:{}\n", i + 1, r.found[i].seconds(), keys.empty() ? " {}" : "");
    for (const std::string& key : keys)
      text += fmt::format("        {}: {}\n", key, format_field(*find_field(key), r.found[i].open.config));
  }
  return text;
}

}  // namespace trivet
