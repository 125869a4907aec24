// trivet config RUN.yaml: explains the run before anything is allocated.

#include <fmt/format.h>
#include <memory>

#include "base/built_with.h"
#include "base/files.h"
#include "engine/config/explain.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/data/training_data.h"
#include "engine/metrics/walltime.h"
#include "engine/train/rank_state.h"
#include "engine/train/run.h"
#include "launch/commands.h"

namespace trivet {
namespace {

struct ConfigOptions {
  std::string path;
  std::vector<std::string> sets;
  int ranks = 0;
  bool yaml = false;
  bool keys = false;
  std::string picture;  // file for a plot of the schedules; empty: none
};

// One plan per pipeline rank: its tensor- and data-parallel ranks all have the same plan.
std::vector<MemoryPlan> memory_of_pipeline_ranks(const Config& config, const Layout& layout) {
  std::vector<MemoryPlan> plans;
  for (int pp = 0; pp < layout.schedule.p; ++pp) plans.push_back(plan_memory(config, layout, {{Axis::pp, pp}}));
  return plans;
}

void run(const ConfigOptions& options, DrawSchedule draw) {
  if (options.keys) {
    print_blocks({describe_keys()});
    return;
  }
  if (options.path.empty()) throw ConfigError("trivet config: expected the YAML file of a run, or --keys");
  LoadedConfig loaded = load_config(options.path, options.sets);
  const int ranks = options.ranks > 0 ? options.ranks : ranks_of_one_replica(loaded.config);
  const RunFacts facts = facts_of(loaded.config, ranks);
  const Layout layout = resolve(loaded, facts);
  const Config& config = loaded.config;
  TextBlock data;
  if (facts.has_dataset) data = open_training_data(config, samples_of_run(config, layout)).sources;
  for (const std::string& note : layout.notes) fmt::print(stderr, "trivet: {}\n", note);
  if (config.device.kind == DeviceKind::cuda && !built_with_cuda())
    fmt::print(stderr,
               "trivet: device.kind is cuda, but this build has no CUDA: it can plan this run, but not train it\n");
  if (!options.picture.empty()) {
    write_file(options.picture, draw(config, layout));
    fmt::print("{}\n", options.picture);
    return;
  }
  if (options.yaml) {
    fmt::print("{}", to_yaml(loaded.config));
    return;
  }
  print_blocks({describe_values(loaded)});
  fmt::print("\n");
  std::vector<TextBlock> blocks = describe_run(loaded.config, layout, memory_of_pipeline_ranks(loaded.config, layout));
  if (!data.rows.empty()) blocks.push_back(data);
  WallTime time(config);
  time.read(config.train.run_dir + "/metrics.jsonl");
  if (time.known()) blocks.push_back({.title = "time", .rows = {{"by the run so far", time.report().text}}});
  print_blocks(blocks);
}

}  // namespace

void add_config_command(CLI::App& app, DrawSchedule draw) {
  auto options = std::make_shared<ConfigOptions>();
  CLI::App* command = app.add_subcommand("config", "show a run's resolved values, parameters and memory");
  command->add_option("run", options->path, "YAML file of the run")->option_text("RUN.yaml");
  add_set_option(*command, options->sets, "override a value of the file");
  add_ranks_option(*command, options->ranks, "ranks of the run; default: as many as one model needs");
  command->add_flag("--yaml", options->yaml, "print the resolved configuration as YAML instead");
  command->add_flag("--keys", options->keys, "list every key with its default, what it takes and its meaning");
  if (draw)
    command->add_option("--plot-schedule", options->picture, "draw the learning rate and batch size of each step")
        ->option_text("FILE.svg")
        ->check(svg_name());
  command->callback([options, draw] { run(*options, draw); });
}

}  // namespace trivet
