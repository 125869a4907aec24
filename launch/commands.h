// The subcommands of trivet, one file each, and their shared parts: options, number checks, launching ranks. Each
// add_…_command() registers a command; its callback throws trivet::Error, which main() reports. Two programs are built
// from them, each with its own list: trivet contains all commands, trivet-core those that need nothing from tools/.
#pragma once

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/host.h"
#include "base/scalar.h"
#include "base/text.h"
#include "engine/config/validate.h"
#include "launch/version.h"
#include "parallel/comm/comm.h"

namespace trivet {

struct Study;
struct Plan;

// Registers the program's commands (all_commands.cc, core_commands.cc). exit_code: set if a command ended abnormally.
void add_commands(CLI::App& app, int& exit_code);

void add_train_command(CLI::App& app, int& exit_code);  // exit_code: set if the run did not end normally
// draw: plots learning rate and batch size over the run's steps as SVG, for --plot-schedule; null: no such option.
using DrawSchedule = std::string (*)(const Config& config, const Layout& layout);
void add_config_command(CLI::App& app, DrawSchedule draw = nullptr);
void add_data_command(CLI::App& app);
CLI::App& add_checkpoint_command(CLI::App& app);
void add_convert_command(CLI::App& checkpoint);  // trivet checkpoint convert
void add_generate_command(CLI::App& app);
void add_schedule_command(CLI::App& app);
void add_flight_command(CLI::App& app);
void add_study_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_explain_command(CLI::App& app);
void add_trace_command(CLI::App& app);
void add_watch_commands(CLI::App& app);
void add_contention_command(CLI::App& app);
void add_preflight_command(CLI::App& app, int& exit_code);  // exit_code: set if something is slow or fails
void add_mlperf_command(CLI::App& app, int& exit_code);     // exit_code: set if logs have errors

// trivet study FILE --contention: runs trivet contention under the baseline's launcher, writes OUT/contention.json.
// `program`: the path of trivet. Throws Error if a measurement fails or a stop is requested.
void measure_study_contention(const Study& study, const Plan& plan, const std::string& program,
                              const std::function<bool()>& stop_asked);

// NCCL ranks run as processes, because threads would contend for the driver's lock (comm.backend: thread still requests
// threads). If no launcher started this process, it execs mpirun, which starts the command `ranks` times. Returns if
// the ranks are threads or already launched. Throws ConfigError if mpirun cannot be started.
void start_processes(const Config& config, int ranks);

// Runs rank_main on the ranks: under a launcher, or with backend mpi, this process is one rank; otherwise the ranks are
// `asked` threads (--ranks; 0: not given, use `needed`). Throws ConfigError if the launcher contradicts the arguments.
void run_ranks(std::optional<CommBackend> backend, int asked, int needed,
               const std::function<void(Communicator& world)>& rank_main);

// Flushes standard output; throws IoError. main() handles a closed pipe.
inline void flush_output() {
  if (std::fflush(stdout) != 0 && errno != EPIPE)
    throw IoError("standard output cannot be written: " + error_text(errno));
}

// Prints a sentence wrapped to the terminal's width, or nothing if it is empty.
inline void print_text(const std::string& text) {
  if (!text.empty()) fmt::print("{}\n", wrapped(text, static_cast<size_t>(terminal_columns(STDOUT_FILENO))));
}

// Prints the blocks on standard output, formatted for the terminal's width.
inline void print_blocks(const std::vector<TextBlock>& blocks) {
  fmt::print("{}", render(blocks, terminal_columns(STDOUT_FILENO)));
}

// ---- options. Their checks report errors as the configuration's do; CLI11's own checks accept NaN, and print the
//      largest double if there is no upper bound.

inline CLI::Validator whole_number(int64_t low, int64_t high = std::numeric_limits<int64_t>::max()) {
  const auto check = [=](std::string& text) -> std::string {
    int64_t value = 0;  // decimal: CLI11 would parse 010 as octal 8
    const char* const last = text.data() + text.size();
    const auto end = std::from_chars(text.data(), last, value);
    const bool octal = text.size() > 1 && text[0] == '0';
    if (octal || end.ec != std::errc() || end.ptr != last || value < low || value > high)
      return fmt::format("found {}, expected an integer {}", quote(text),
                         high == std::numeric_limits<int64_t>::max() ? fmt::format("of at least {}", low)
                                                                     : fmt::format("from {} to {}", low, high));
    return {};
  };
  return {check, ""};
}

inline CLI::Validator file_name() {
  return {[](std::string& text) { return text.empty() ? "is empty, expected a file name" : ""; }, ""};
}

// A file to read; -: standard input, for commands that accept it.
inline CLI::Validator input_path() {
  const auto check = [](std::string& text) -> std::string {
    return text == "-" || file_exists(text) ? "" : fmt::format("{}: {}", text, error_text(errno));
  };
  return {check, ""};
}

inline CLI::Validator svg_name() {
  return {[](std::string& text) {
            const bool fits = text.ends_with(".svg") || text.starts_with("/dev/");  // a pipe, or standard output
            return fits ? "" : fmt::format("found {}, expected the name of an .svg file", quote(text));
          },
          ""};
}

// `expected`: the condition good(), in words.
inline CLI::Validator number(const char* expected, bool (*good)(double)) {
  const auto check = [=](std::string& text) -> std::string {
    const auto value = parse_number(text);
    return value && good(*value) ? "" : fmt::format("found {}, expected {}", quote(text), expected);
  };
  return {check, ""};
}
inline CLI::Validator at_least_zero() {
  return number("a number of at least 0", [](double x) { return x >= 0; });
}
inline CLI::Validator share() {
  return number("a number above 0, at most 1", [](double x) { return x > 0 && x <= 1; });
}

// Adds a required argument, which help and errors call `name`.
inline void add_argument(CLI::App& command, const char* name, std::string& value, const char* help) {
  command.add_option(name, value, help)->option_text(name)->required();
}
// Adds an option whose default the help shows.
template <class T>
CLI::Option* add_number(CLI::App& command, const char* name, T& value, const CLI::Validator& check, const char* help) {
  return command.add_option(name, value, help)->check(check)->capture_default_str();
}
// Adds an option that takes a list, comma-separated or in separate arguments. parse: converts an item's text, which may
// be empty, to an optional value (CLI11's own delimiter drops empty items).
template <class T, class Parse>
CLI::Option* add_list(CLI::App& command, const char* name, std::vector<T>& items, const char* expected,
                      const Parse& parse, const std::string& help) {
  const auto read = [=, &items](const std::vector<std::string>& arguments) {
    items.clear();
    for (const std::string& argument : arguments)
      for (const std::string_view item : split_words(argument)) {
        const auto value = parse(item);
        if (!value) throw CLI::ValidationError(name, fmt::format("found {}, expected {}", quote(item), expected));
        items.push_back(static_cast<T>(*value));
      }
    return true;
  };
  return command.add_option(name, read, help)
      ->type_name(std::is_integral_v<T> ? "INT" : std::is_arithmetic_v<T> ? "FLOAT" : "TEXT")
      ->take_all()
      ->allow_extra_args(false);  // a positional argument may follow
}
inline void add_set_option(CLI::App& command, std::vector<std::string>& sets, const char* help) {
  command.add_option("--set", sets, help)->option_text("SECTION.KEY=VALUE ...")->take_all()->allow_extra_args(false);
}
inline void add_ranks_option(CLI::App& command, int& ranks, const char* help) {
  command.add_option("--ranks", ranks, help)->option_text("N")->check(whole_number(1, kMostRanks));
}

}  // namespace trivet
