// trivet flight RUN_DIR: who hung or died, from the flight dumps that the ranks left.

#include <fmt/format.h>
#include <memory>
#include <string>

#include "engine/fault/flight_dump.h"
#include "launch/commands.h"

namespace trivet {

void add_flight_command(CLI::App& app) {
  auto run_dir = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("flight", "say from a failed run's flight dumps which rank did not join which collective");
  add_argument(*command, "run_dir", *run_dir, "RUN_DIR", "train.run_dir of the run");
  command->callback([run_dir] { fmt::print("{}", describe_flight(read_flight_folder(*run_dir))); });
}

}  // namespace trivet
