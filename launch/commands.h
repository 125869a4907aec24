// The subcommands of `trivet`, one file each. Each adds itself to the program and sets the callback that runs it.
#pragma once

#include <CLI/CLI.hpp>

namespace trivet {

void add_schedule_command(CLI::App& app);

}  // namespace trivet
