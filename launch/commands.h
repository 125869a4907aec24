// The program's subcommands. Each adds itself to the app with its options and what to do as its callback, which throws
// trivet's errors; main() turns them into exit codes.
#pragma once

namespace CLI {
class App;
}

namespace trivet {

void add_data_command(CLI::App& app);

}  // namespace trivet
