// The subcommands of trivet-core.
#include "launch/commands.h"
#include "launch/help.h"

namespace trivet {

void add_commands(CLI::App& app, int& exit_code) {
  app.name("trivet-core");
  add_train_command(app, exit_code);
  add_config_command(app);
  add_generate_command(app);
  add_checkpoint_command(app);
  add_flight_command(app);
  add_completion_command(app);
  for (const std::string name : {"data", "schedule", "study", "plan", "trace", "contention", "mlperf"}) {
    CLI::App* const absent = app.add_subcommand(name)->group("")->prefix_command();
    absent->set_help_flag();  // --help would claim that the command exists
    absent->callback([name] {
      throw ConfigError(name +
                        ": found trivet-core, which is the engine alone; expected trivet from a build with "
                        "-DTRIVET_TOOLS=ON");
    });
  }
}

}  // namespace trivet
