// trivet contention RUN.yaml: measures how much a collective slows concurrent GEMMs. trivet study FILE --contention
// runs it under the study's launcher and links, on GPUs once per limit on NCCL's thread blocks (CTAs).

#include "tools/study/contention.h"

#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/train/run.h"
#include "launch/commands.h"
#include "tools/study/child_process.h"
#include "tools/study/plan.h"
#include "tools/study/runner.h"

namespace trivet {
namespace {

struct ContentionCommand {
  std::string path;
  std::vector<std::string> sets;
  int ranks = 0;  // 0: not given
  ContentionOptions options;
};

void run(const ContentionCommand& command) {
  const LoadedConfig loaded = load_config(command.path, command.sets);
  const int needed = std::max(2, ranks_of_one_replica(loaded.config));
  naming_keys([&] { start_processes(loaded.config, command.ranks > 0 ? command.ranks : needed); });
  run_ranks(loaded.config.comm.backend, command.ranks, needed, [&](Communicator& world) {
    LoadedConfig own = loaded;
    resolve(own, facts_of(own.config, world.size()));
    const nlohmann::ordered_json measured = measure_contention(own.config, world, command.options);
    if (world.rank() == 0) fmt::print("{}\n", measured.dump(2));
  });
}

// The curve of one launch, measured in its own process.
nlohmann::ordered_json curve_of(const Study& study, const Point& point, const Launch& launch,
                                const std::string& program, const std::function<bool()>& stop_asked) {
  constexpr int64_t kMostBytes = 1 << 20;
  const std::string folder = study.out + "/contention", output = folder + "/stdout.log";
  empty_folder(folder);
  std::vector<std::string> command = launch_command(launch, {program, "contention", study.base});
  for (const std::string& set : point.sets) command.insert(command.end(), {"--set", set});
  const ChildEnd end = run_child({.arguments = command,
                                  .stdout_path = output,
                                  .stderr_path = folder + "/stderr.log",
                                  .timeout_seconds = 60 * study.timeout_minutes},
                                 stop_asked);
  if (end.how == ChildEnd::exited && end.code == 0)
    return parse_json<nlohmann::ordered_json>(read_small_file(output, kMostBytes));
  if (end.how == ChildEnd::stopped) throw Error("stopped; contention.json is not written");
  throw Error(fmt::format("study {}: the contention was not measured: {}{}", study.name,
                          end.how == ChildEnd::timed_out ? "it took longer than timeout_minutes; " : "",
                          failure_reason(read_small_file(folder + "/stderr.log", kMostBytes))));
}

}  // namespace

void measure_study_contention(const Study& study, const Plan& plan, const std::string& program,
                              const std::function<bool()>& stop_asked) {
  const Point& point = plan.points[plan.baseline.value_or(0)];
  // NCCL's CTA budgets if the ranks are on GPUs; otherwise one unmodified launch.
  std::vector<std::string> budgets{""};
  Launch launch = point.launch;
  launch.environment["NCCL_MAX_CTAS"] = "1";
  if (launch_problem(launch, load_config(study.base, point.sets).config).empty())
    budgets = {"", "1", "2", "4", "8", "16", "32"};
  nlohmann::ordered_json all = {{"study", study.name}, {"point", describe_choice(study, point.choice)}};
  TextBlock table{.title = fmt::format("study {}: GEMMs during a collective", study.name)};
  for (const char* heading : {"max. CTAs", "link use", "Gbit/s", "slowdown", "95 %"}) table.column(heading, 'r');
  for (const std::string& budget : budgets) {
    launch = point.launch;
    if (!budget.empty()) launch.environment["NCCL_MAX_CTAS"] = budget;
    nlohmann::ordered_json curve = curve_of(study, point, launch, program, stop_asked);
    for (const auto& at : curve.at("curve")) {
      const auto text = [&](const char* key, const char* format) {
        return fmt::format(fmt::runtime(format), at.at(key).get<double>());
      };
      table.rows.push_back({budget.empty() ? "-" : budget, percent_text(at.at("link_use").get<double>()),
                            text("bus_gbps", "{:.2f}"), text("slowdown", "{:.3f}"),
                            text("slowdown_low", "{:.3f} to ") + text("slowdown_high", "{:.3f}")});
    }
    curve["max_ctas"] = budget.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(std::stoi(budget));
    all["curves"].push_back(std::move(curve));
  }
  write_file(study.out + "/contention.json", all.dump(2) + '\n');
  print_blocks({table});
  fmt::print("\n{}/contention.json\n", study.out);
}

void add_contention_command(CLI::App& app) {
  auto command = std::make_shared<ContentionCommand>();
  CLI::App* sub =
      app.add_subcommand("contention", "measure how much a collective slows concurrent GEMMs, and print it as JSON");
  add_argument(*sub, "RUN.yaml", command->path, "YAML file of a run: its model, devices and links");
  add_ranks_option(*sub, command->ranks, "ranks, at least 2: threads, on GPUs processes");
  add_set_option(*sub, command->sets, "override a value of the file");
  add_number(*sub, "--rounds", command->options.rounds, whole_number(2, 1000), "measurements per link use");
  add_number(*sub, "--bytes", command->options.bytes, whole_number(64, int64_t{1} << 40),
             "buffer of the reduce-scatter");
  sub->callback([command] { run(*command); });
}

}  // namespace trivet
