// trivet plan RUN.yaml --system NAME --ranks N: what the run would do on GPUs that are not here.
#include <fmt/format.h>
#include <memory>

#include "engine/config/load.h"
#include "engine/plan/predict.h"
#include "engine/train/run.h"
#include "launch/commands.h"
#include "launch/plan_calibrate.h"
#include "launch/plan_search.h"

namespace trivet {
namespace {

struct PlanOptions {
  std::string path, system, trace;
  std::vector<std::string> sets, system_sets;
  int ranks = 0;
  bool json = false, systems = false, full = false;
  CalibrationOptions calibration;
  PlanSearch search;
};

void print_systems() {
  std::vector<TextBlock> blocks;
  for (const std::string& name : system_names()) {
    const System system = load_system(name);
    TextBlock block{.title = name};
    for (const SystemKey& key : system_keys())
      block.rows.push_back({std::string(key.name), fmt::format("{:g}", value_of(system, key)), std::string(key.unit)});
    blocks.push_back(std::move(block));
  }
  print_blocks(blocks);
}

// The system's page has the links of a planned run.
void leave_out_emulation(Config& config) {
  CommConfig& comm = config.comm;
  const CommConfig none;
  bool emulated = false;
  const auto reset = [&](auto CommConfig::*member) {
    emulated = emulated || comm.*member != none.*member;
    comm.*member = none.*member;
  };
  reset(&CommConfig::link_latency_us), reset(&CommConfig::link_gbps);
  reset(&CommConfig::tensor_link_latency_us), reset(&CommConfig::tensor_link_gbps);
  reset(&CommConfig::pipeline_link_latency_us), reset(&CommConfig::pipeline_link_gbps);
  reset(&CommConfig::data_link_latency_us), reset(&CommConfig::data_link_gbps);
  reset(&CommConfig::shared_port);
  if (emulated) fmt::print(stderr, "trivet: the emulated links of comm are left out: the system's page has its own\n");
}

void run(const PlanOptions& options) {
  if (options.systems) return print_systems();
  if (const CalibrationOptions& rows = options.calibration; !rows.score.empty() || !rows.calibrate.empty()) {
    if (!options.path.empty()) throw ConfigError(fmt::format("{}: each row names its run; leave it out", options.path));
    return score_or_calibrate(rows);
  }
  if (options.path.empty()) throw ConfigError("trivet plan: expected the YAML file of a run, or --systems");
  if (options.system.empty()) throw ConfigError("--system: is missing, expected one of --systems, or a file");
  const System system = load_system(options.system, options.system_sets);
  LoadedConfig loaded = load_config(options.path, options.sets);
  const CommConfig links = loaded.config.comm;
  leave_out_emulation(loaded.config);
  if (loaded.config.train.skip_train) throw ConfigError("train.skip_train: is true, but a plan is of training steps");
  if (batch_sizes_of(loaded.config, loaded.config.batch.micro_batch_size).parts.size() > 1)
    throw ConfigError(
        "the batch size changes over the run, but a plan is of one: leave the ramp out, with batch."
        "global_batch_size as the batch to plan");
  if (options.search.wanted) {
    if (options.ranks == 0) throw ConfigError("--ranks: is missing, expected the ranks to look for layouts of");
    return run_search(options.search, loaded, links, options.ranks, system, options.json);
  }
  const int ranks = options.ranks > 0 ? options.ranks : ranks_of_one_replica(loaded.config);
  RunFacts facts = facts_of(loaded.config, ranks);
  facts.planned = true;
  const Layout layout = resolve(loaded, facts);
  for (const std::string& note : layout.notes) fmt::print(stderr, "trivet: {}\n", note);
  const Prediction prediction = predict(loaded.config, layout, system, options.trace, options.full);
  if (options.json) fmt::print("{}", to_json(prediction, system));
  else print_blocks(describe(prediction, system));
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "predict a run on GPUs that are not here, by rehearsing the engine");
  command->add_option("run", options->path, "YAML file of the run")->option_text("RUN.yaml");
  add_set_option(*command, options->sets, "a value instead of the file's");
  add_ranks_option(*command, options->ranks, "ranks of the run; without it, as many as one model needs");
  command->add_option("--system", options->system, "the machine: a page of configs/systems, or a file")
      ->option_text("NAME|FILE");
  command->add_option("--system-set", options->system_sets, "a constant instead of the page's")
      ->option_text("KEY=VALUE ...")
      ->take_all()
      ->allow_extra_args(false);
  CLI::Option* search = add_search_options(*command, options->search);
  command->add_flag("--systems", options->systems, "list the pages with their constants")->excludes(search);
  command->add_flag("--json", options->json, "print the prediction as JSON");
  command
      ->add_flag("--full", options->full, "play every rank, also those that do the same: slower, with the same times")
      ->excludes(search);
  command->add_option("--trace", options->trace, "write the last step of a rank of each kind for ui.perfetto.dev")
      ->option_text("FILE.json")
      ->excludes(search);
  add_calibration_options(*command, options->calibration);
  command->callback([options] {
    options->calibration.system = options->system;
    options->calibration.system_sets = options->system_sets;
    run(*options);
  });
}

}  // namespace trivet
