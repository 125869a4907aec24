// trivet preflight RUN.yaml: checks ranks, links, disk and data before a run that takes days.
#include "tools/preflight/preflight.h"

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/config/load.h"
#include "engine/train/run.h"
#include "launch/commands.h"

namespace trivet {
namespace {

constexpr int kSlow = 69;  // EX_UNAVAILABLE

struct PreflightOptions {
  std::string path, json;
  std::vector<std::string> sets;
  int ranks = 0;  // 0: not given
};

int run(const PreflightOptions& options) {
  check_writable({options.json}, {options.path});
  const LoadedConfig loaded = load_config(options.path, options.sets);
  const int needed = ranks_of_one_replica(loaded.config);
  naming_keys([&] { start_processes(loaded.config, options.ranks > 0 ? options.ranks : needed); });
  std::atomic<int> exit_code = 0;
  run_ranks(loaded.config.comm.backend, options.ranks, needed, [&](Communicator& world) {
    LoadedConfig own = loaded;
    const Layout layout = resolve(own, facts_of(own.config, world.size()));
    const Preflight measured = measure_preflight(own.config, layout, world);
    const std::vector<std::string> slow = slow_parts(measured);
    exit_code = !measured.failed.empty() ? measured.exit_code : slow.empty() ? 0 : kSlow;
    if (world.rank() == 0) {
      print_blocks({table_of(measured)});
      for (const std::string& line : measured.failed) print_text("failed: " + line);
      for (const std::string& line : slow) print_text("slow: " + line);
      if (exit_code == 0) fmt::print("nothing is slow and nothing has failed\n");
      flush_output();
      if (!options.json.empty()) write_file(options.json, json_of(measured).dump(2) + '\n');
    }
    world.barrier();  // mpirun kills all ranks when one exits with a nonzero code
  });
  return exit_code;
}

}  // namespace

void add_preflight_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<PreflightOptions>();
  CLI::App* command = app.add_subcommand("preflight", "measure ranks, links, disk and data before a long run");
  add_argument(*command, "RUN.yaml", options->path, "YAML file of the run");
  add_ranks_option(*command, options->ranks, "ranks: threads or GPU processes; default: as many as one model needs");
  add_set_option(*command, options->sets, "override a value of the file");
  command->add_option("--json", options->json, "write all numbers to this file")
      ->option_text("FILE")
      ->check(file_name());
  command->footer("Exit codes: 0 healthy, 69 something is slow, 64, 65, 70 or 74 something fails or differs.");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace trivet
