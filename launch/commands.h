// The subcommands of `trivet`, one file each: add_<name>_command(app) declares the options and what to run.
#pragma once

namespace CLI {
class App;
}

namespace trivet {

void add_config_command(CLI::App& app);

}  // namespace trivet
