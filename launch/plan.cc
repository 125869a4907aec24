// trivet plan RUN.yaml --system NAME --ranks N: predicts the run on GPUs that this machine does not have.
#include "launch/plan.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/files.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "launch/commands.h"
#include "launch/redrawn_line.h"
#include "tools/mlperf/section.h"
#include "tools/plan/ablate.h"
#include "tools/plan/measure.h"
#include "tools/plan/planned_run.h"
#include "tools/plan/run_cost.h"
#include "tools/plan/scale.h"
#include "tools/plan/tape.h"

namespace trivet {
namespace {

struct PlanOptions {
  std::string path, other, system;
  std::vector<std::string> sets, system_sets;
  std::vector<int> ranks;
  std::string scaling;  // "": not given
  PredictOptions outputs;
  std::optional<double> tokens, price;
  double memory_margin = 0;  // as a fraction of the device memory
  bool json = false, systems = false, ablate = false;
  CalibrationOptions calibration;
  PlanSearch search;
};

void print_json(const nlohmann::ordered_json& json) { fmt::print("{}\n", json.dump(2)); }

void print_systems(bool as_json) {
  std::vector<TextBlock> blocks;
  nlohmann::ordered_json json;
  for (const std::string& name : system_names()) {
    const System system = load_system(name);
    TextBlock block{.title = name};
    for (const SystemKey& key : system_keys())
      if (key.is_of(system.kind()) && (key.required || value_of(system, key) > 0)) {
        json[name][std::string(key.name)] = value_of(system, key);
        block.rows.push_back(
            {std::string(key.name), fmt::format("{:g}", value_of(system, key)), std::string(key.unit)});
      }
    blocks.push_back(std::move(block));
  }
  if (as_json) print_json(json);
  else print_blocks(blocks);
}

// On CPUs, ranks are threads of one process, with the links that the run emulates.
void use_cpus(Config& config, const System& system) {
  if (config.device.kind == DeviceKind::cuda)
    throw ConfigError(fmt::format("device.kind: found cuda, expected auto or cpu: {} has no GPUs", system.name));
  if (config.comm.backend.value_or(CommBackend::thread) != CommBackend::thread)
    throw ConfigError(
        fmt::format("comm.backend: expected auto or thread: the ranks of {} are threads of a process", system.name));
  for (const Field& field : fields())
    if (field.section() == "plan" && !is_default(field, config))
      throw ConfigError(fmt::format("{}: applies to specs of GPUs, and {} is a spec of CPUs", field.name, system.name));
  config.device.kind = DeviceKind::cpu;
}

// links: receives the file's `comm`; a run on GPUs is planned without the links it emulates.
LoadedConfig load_run(const std::string& path, const std::vector<std::string>& sets, const System& system,
                      CommConfig& links) {
  LoadedConfig loaded = load_untrained(path, sets);
  links = loaded.config.comm;
  if (system.kind() == SystemKind::cpu) use_cpus(loaded.config, system);
  else if (loaded.config.device.kind == DeviceKind::cpu)
    throw ConfigError(fmt::format("device.kind: found cpu, expected auto or cuda: {} is a spec of GPUs", system.name));
  else if (remove_links(loaded.config.comm))
    fmt::print(stderr, "trivet: the emulated links of comm are left out: the system spec has its own\n");
  return loaded;
}

// Measures this machine's CPUs and writes their spec.
void measure(const PlanOptions& options, const System& system) {
  if (system.kind() != SystemKind::cpu)
    throw ConfigError(
        fmt::format("--calibrate: measures the CPUs of this machine, and {} is a spec of GPUs; expected "
                    "--system cpu, or a spec like it",
                    system.name));
  if (!options.path.empty() || options.calibration.out.empty())
    throw ConfigError("--calibrate: expected --out FILE.yaml and no run: it measures its own runs");
  check_writable({options.calibration.out});
  const MeasuredSystem measured = measure_system(system, [](const std::string& what) {
    fmt::print("measuring {}\n", what);
    std::fflush(stdout);
  });
  print_blocks({measured.fit});
  write_file(options.calibration.out, page_of(measured));
}

// Predicts one run at several rank counts.
void run_curves(const PlanOptions& options, const LoadedConfig& loaded, const System& system) {
  for (const auto& [name, given] : {std::pair{"--ablate", options.ablate},
                                    {"--tokens", options.tokens.has_value()},
                                    {"--price", options.price.has_value()},
                                    {"--trace", !options.outputs.trace.empty()}})
    if (given) throw ConfigError(fmt::format("{}: takes one number of --ranks, found {}", name, options.ranks.size()));
  std::vector<int> ranks = options.ranks;
  std::ranges::sort(ranks);
  if (const auto twice = std::ranges::adjacent_find(ranks); twice != ranks.end())
    throw ConfigError(fmt::format("--ranks: found {} twice, expected each number once", *twice));
  std::vector<ScaleCurve> curves;
  for (const Scaling scaling : {Scaling::weak, Scaling::strong})
    if (options.scaling.empty() || options.scaling == "both" || options.scaling == word_of(scaling))
      curves.push_back(scale_curve(loaded, ranks, system, scaling));
  if (std::ranges::none_of(curves, &ScaleCurve::legal))
    throw ConfigError(fmt::format("--ranks: the run is valid on none of these numbers of ranks; on {}: {}",
                                  ranks.front(), curves.front().points.front().refusal));
  if (!options.outputs.picture.empty()) write_file(options.outputs.picture, picture_of(curves));
  nlohmann::ordered_json json{{"system", system.name}};
  for (const ScaleCurve& curve : curves) {
    if (options.json) json["curves"].push_back(json_of(curve));
    else print_blocks(describe(curve));
  }
  if (options.json) print_json(json);
}

Ablation ablate_with_progress(const LegalRun& run, const System& system) {
  RedrawnLine line;
  return ablate(run, system, [&](size_t done, size_t of) {
    if (line.due())
      line.draw(fmt::format("ablate {}", progress_bar(static_cast<double>(done) / static_cast<double>(of))));
  });
}

void run_one(const PlanOptions& options, const LoadedConfig& loaded, const System& system) {
  const int ranks = options.ranks.empty() ? ranks_of_one_replica(loaded.config) : options.ranks.front();
  RedrawnLine line;
  constexpr int kManyRanks = 100'000;  // takes seconds
  if (ranks >= kManyRanks) line.draw(fmt::format("rehearsing {} ranks", grouped(ranks)));
  const RunPlan planned = plan_run(loaded, ranks, system, options.outputs);
  line.clear();
  const auto& [config, layout] = std::tie(planned.run.loaded.config, planned.run.layout);
  for (const std::string& note : layout.notes) fmt::print(stderr, "trivet: {}\n", note);
  if (!planned.choice.empty()) fmt::print(stderr, "trivet: {}\n", planned.choice);
  std::optional<RunCost> cost;
  if (options.tokens || options.price)
    cost = cost_of_run(planned.prediction.step, tokens_of_run(options.tokens, config, layout), options.price, system);
  const auto to_target = time_to_target(config, planned.prediction.step.step_seconds);
  std::optional<Ablation> ablation;
  if (options.ablate) ablation = ablate_with_progress(planned.run, system);
  if (options.json) {
    nlohmann::ordered_json json = json_of(planned.prediction, system);
    json["micro_batch_size"] = config.batch.micro_batch_size;
    json["virtual_pipeline_model_parallel_size"] = layout.schedule.v;
    if (cost) add_json(*cost, json);
    if (to_target)
      json["to_target"] = {
          {"steps", to_target->steps}, {"evaluations", to_target->evaluations}, {"minutes", to_target->minutes}};
    if (ablation) json["ablation"] = json_of(*ablation);
    return print_json(json);
  }
  std::vector<TextBlock> blocks = describe(planned.prediction, system);
  if (cost) blocks.insert(blocks.begin() + 1, describe(*cost));
  if (to_target)
    blocks.insert(
        blocks.begin() + 1,
        {.title = "to MLPerf's target, as the reference converges",
         .rows = {{"steps", fmt::format("{:.4g}", to_target->steps)},
                  {"evaluations", fmt::format("{:.3g}, a sample as a third of a step's", to_target->evaluations)},
                  {"time", fmt::format("{:.4g} minutes", to_target->minutes)}}});
  print_blocks(blocks);
  if (ablation) print_blocks(describe(*ablation));
}

void run(const PlanOptions& options) {
  if (options.systems) return print_systems(options.json);
  const CalibrationOptions& calibration = options.calibration;
  if (!calibration.score.empty() || !calibration.calibrate.empty()) {
    if (!options.path.empty()) throw ConfigError(fmt::format("{}: each row names its run; leave it out", options.path));
    return score_or_calibrate(calibration);
  }
  if (!calibration.plot.empty()) throw ConfigError("--plot: only applies to --score, and to --calibrate with rows");
  if (options.path.empty() && !calibration.wanted)
    throw ConfigError("trivet plan: expected the YAML file of a run, or --systems");
  if (options.system.empty()) throw ConfigError("--system: is missing, expected one of --systems, or a file");
  System system = load_system(options.system, options.system_sets);
  system.memory_gib *= 1 - options.memory_margin;
  if (calibration.wanted) return measure(options, system);
  CommConfig links;
  const LoadedConfig loaded = load_run(options.path, options.sets, system, links);
  if (!options.other.empty()) {
    if (options.ranks.size() > 1)
      throw ConfigError(fmt::format("--ranks: found {} numbers, expected one for two runs", options.ranks.size()));
    const LoadedConfig other = load_run(options.other, options.sets, system, links);
    const int ranks = options.ranks.empty() ? ranks_of_one_replica(loaded.config) : options.ranks.front();
    const Ablation found = compare(loaded, other, ranks, system);
    if (options.json) print_json(json_of(found));
    else print_blocks(describe(found));
    return;
  }
  if (options.search.wanted) {
    if (options.ranks.size() != 1)
      throw ConfigError(
          fmt::format("--ranks: found {} numbers, expected one, on which to search for layouts", options.ranks.size()));
    check_is_planned(loaded.config);
    return run_search(options.search, loaded, links, options.ranks.front(), system, options.json);
  }
  check_writable({options.outputs.trace, options.outputs.picture}, {options.path, options.system});
  if (options.ranks.size() > 1) run_curves(options, loaded, system);
  else if (!options.scaling.empty()) throw ConfigError("--scaling: takes several numbers of --ranks, found one");
  else run_one(options, loaded, system);
}

std::optional<int64_t> number_of_ranks(std::string_view text) {
  const auto ranks = parse_integer(text);
  return ranks && *ranks >= 1 && *ranks <= kMostRanks ? ranks : std::nullopt;
}

// Options for predictions beyond a single step.
void add_questions(CLI::App& command, PlanOptions& options, CLI::Option* ranks) {
  command.add_option("--scaling", options.scaling, "whether the global batch grows with the ranks [both]")
      ->option_text("weak|strong|both")
      ->check(CLI::IsMember({"weak", "strong", "both"}))
      ->needs(ranks);
  command.add_flag("--ablate", options.ablate, "show what each cost and each switch contributes");
  command.add_option("--tokens", options.tokens, "tokens of the run, to compute its days and energy")
      ->option_text("N")
      ->check(number("a number above 0", [](double x) { return x > 0 && std::isfinite(x); }));
  command.add_option("--price", options.price, "price of one rank-hour, to compute the run's cost")
      ->option_text("MONEY")
      ->check(at_least_zero());
}

// Options for output files.
void add_outputs(CLI::App& command, PlanOptions& options) {
  CLI::Option* trace =
      command.add_option("--trace", options.outputs.trace, "write the last step of some ranks for ui.perfetto.dev")
          ->option_text("FILE.json");
  add_list(command, "--trace-ranks", options.outputs.trace_ranks, "ranks separated by commas", parse_integer,
           "ranks to write with --trace; default: one of each kind")
      ->needs(trace);
  command.add_option("--picture", options.outputs.picture, "draw the passes of the step, or the scale curves")
      ->option_text("FILE.svg")
      ->check(svg_name());
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "predict a run on other GPUs by rehearsing the engine");
  command->add_option("run", options->path, "YAML file of the run")->option_text("RUN.yaml");
  CLI::Option* other = command
                           ->add_option("other", options->other,
                                        "another run: show what each of its differences would change in the first")
                           ->option_text("OTHER.yaml");
  add_set_option(*command, options->sets, "override a value of the file");
  CLI::Option* ranks = add_list(*command, "--ranks", options->ranks, "integers from 1 to 1000000, separated by commas",
                                number_of_ranks, "ranks of the run; several: scale curves")
                           ->option_text("N,...");
  command->add_option("--system", options->system, "the machine: a system spec of configs/systems, or a file")
      ->option_text("NAME|FILE");
  command->add_option("--system-set", options->system_sets, "override a constant of the spec")
      ->option_text("KEY=VALUE ...")
      ->take_all()
      ->allow_extra_args(false);
  add_number(*command, "--memory-margin", options->memory_margin,
             number("a number from 0 to 0.9", [](double x) { return x >= 0 && x <= 0.9; }),
             "share of a device's memory to leave free");
  CLI::Option* search = add_search_options(*command, options->search);
  command->add_flag("--systems", options->systems, "list the specs with their constants")->excludes(search);
  command->add_flag("--json", options->json, "print the prediction, or the specs, as JSON");
  add_questions(*command, *options, ranks);
  add_outputs(*command, *options);
  add_calibration_options(*command, options->calibration);
  for (const char* name : {"--ablate", "--tokens", "--price", "--trace", "--picture", "--scaling"})
    command->get_option(name)->excludes(search)->excludes(other);
  search->excludes(other);
  command->callback([options, command] {
    options->calibration.wanted = command->count("--calibrate") > 0;
    std::erase(options->calibration.calibrate, "");
    options->calibration.system = options->system;
    options->calibration.json = options->json;
    options->calibration.system_sets = options->system_sets;
    run(*options);
  });
}

}  // namespace trivet
