// trivet flight RUN_DIR: which ranks hung or died, from the flight dumps that the ranks left.

#include <fmt/format.h>
#include <memory>
#include <string>

#include "base/files.h"
#include "engine/fault/flight_dump.h"
#include "launch/commands.h"

namespace trivet {

void add_flight_command(CLI::App& app) {
  auto run_dir = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("flight", "find in a failed run's flight dumps which rank did not join which collective");
  add_argument(*command, "RUN_DIR", *run_dir, "train.run_dir of the run");
  command->callback([run_dir] {
    if (!file_exists(*run_dir)) throw ConfigError(*run_dir + ": there is no such file or directory");
    if (!file_exists(flight_folder(*run_dir) + "/ranks.json"))
      throw DataError(
          *run_dir +
          ": no flight folder with ranks.json, expected the folder of a run: each run creates one when it trains");
    fmt::print("{}", describe_flight(read_flight_folder(*run_dir)));
  });
}

}  // namespace trivet
