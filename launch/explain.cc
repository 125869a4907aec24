// trivet explain RUN.yaml: what one rank of the run holds, queues and sends, on one page.
#include "tools/explain/explain.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/files.h"
#include "engine/config/load.h"
#include "engine/train/run.h"
#include "launch/commands.h"

namespace trivet {
namespace {

struct ExplainOptions {
  std::string path, svg, measured;
  std::vector<std::string> sets;
  int ranks = 0, rank = 0;  // ranks 0: not given
};

// Throws unless the run in the folder used this configuration and this number of ranks.
void check_is_run_of(const std::string& folder, const Config& config, int ranks) {
  const std::string file = folder + "/config.resolved.yaml";
  const Config run = load_config(file, {}).config;
  const auto differs = [&](std::string_view what, const auto& of_run, const auto& here) {
    throw ConfigError(fmt::format("--step: {} was run with {} {}, found {}; expected the run's own: trivet explain {}",
                                  folder, what, of_run, here, file));
  };
  constexpr std::string_view kSections[] = {"model", "batch", "precision", "parallel", "overlap"};
  for (const auto& [key, of_run, here] : differences(run, config))
    if (std::ranges::count(kSections, key.substr(0, key.find('.'))) > 0) differs(key, of_run, here);
  for_each_line(folder + "/metrics.jsonl", [&](const std::string& line, int64_t) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_object() && record.value("event", "") == "start" && record.value("ranks", ranks) != ranks)
      differs("--ranks", record.value("ranks", 0), ranks);
  });
}

void run(const ExplainOptions& options) {
  LoadedConfig loaded = load_config(options.path, options.sets);
  const int ranks = options.ranks > 0 ? options.ranks : ranks_of_one_replica(loaded.config);
  const Layout layout = resolve(loaded, facts_of(loaded.config, ranks));
  for (const std::string& note : layout.notes) fmt::print(stderr, "trivet: {}\n", note);
  std::optional<StepTimeline> measured;
  if (!options.measured.empty()) {
    const std::string trace = trace_of_run(options.measured);
    check_is_run_of(options.measured, loaded.config, ranks);
    measured = read_step_timeline(trace, {}, {options.rank});
  }
  const Explained explained = explain(loaded, layout, options.rank, measured ? &*measured : nullptr);
  if (options.svg.empty()) fmt::print("{}", explained.page);
  else write_file(options.svg, explained.picture);
}

}  // namespace

void add_explain_command(CLI::App& app) {
  const auto options = std::make_shared<ExplainOptions>();
  CLI::App* command = app.add_subcommand("explain", "explain what a rank of a run holds, computes and sends");
  add_argument(*command, "RUN.yaml", options->path, "YAML file of the run");
  add_ranks_option(*command, options->ranks, "ranks of the run; default: as many as one model needs");
  add_number(*command, "--rank", options->rank, whole_number(0, kMostRanks - 1), "the rank to explain");
  CLI::Option* step =
      command->add_option("--step", options->measured, "a run of it with train.trace=true: add the times of a step")
          ->option_text("RUN_DIR")
          ->check(file_name());
  command->add_option("--svg", options->svg, "write its picture to this file instead: a layer, a step's communication")
      ->check(svg_name())
      ->excludes(step);
  add_set_option(*command, options->sets, "override a value of the file");
  command->callback([options] { run(*options); });
}

}  // namespace trivet
