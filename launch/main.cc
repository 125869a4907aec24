// trivet: one program, one file per subcommand. Errors are caught here: one message, and an exit code that tells who
// must act (0 done, 64 config or usage, 65 bad input data, 70 internal, 74 I/O, 75 saved, start again, 93 do not
// requeue, 124 hang).
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ext/stdio_sync_filebuf.h>
#include <fcntl.h>
#include <filesystem>
#include <iostream>
#include <new>
#include <poll.h>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/host.h"
#include "base/text.h"
#include "base/utf8.h"
#include "engine/config/problems.h"
#include "launch/commands.h"
#include "launch/help.h"
#include "parallel/comm/world.h"

namespace {

// If standard output is closed, the next file opened would get its descriptor and receive whatever is printed, so a
// read-only placeholder takes the descriptor: printing to a closed standard output is still an error, as elsewhere.
void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}

// Sends stdout through write_all(), which waits if stdout is non-blocking; stdio loses data after a short write.
void write_stdout_wholly() {
  const auto write = [](void*, const char* text, size_t bytes) {
    return static_cast<ssize_t>(trivet::write_all(STDOUT_FILENO, {text, bytes}));
  };
  FILE* const whole = fopencookie(nullptr, "w", {.read = nullptr, .write = write, .seek = nullptr, .close = nullptr});
  if (whole == nullptr) return;
  setvbuf(whole, nullptr, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
  stdout = whole;
  std::cout.rdbuf(new __gnu_cxx::stdio_sync_filebuf<char>(stdout));  // flushed after all destructors
}

// RLIMIT_STACK bounds the stack of this thread and of every later one. Below kLeast, the program would crash.
bool has_stack() {
  constexpr rlim_t kLeast = 256 << 10;  // bytes
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kLeast) return true;
  trivet::write_stderr(fmt::format("trivet: the limit of the stack is {} KiB, expected at least {} (ulimit -s)\n",
                                   limit.rlim_cur >> 10, kLeast >> 10));
  return false;
}

// True if all output was written; false, for example, on a full disk.
bool flushed() { return std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout.flush().good(); }

// If the reader is gone (trivet … | head), dies of SIGPIPE like other programs; otherwise reports, e.g., a full disk.
int report_lost_output() {
  const int reason = errno;
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  if (poll(&output, 1, 0) == 1 && (output.revents & POLLERR)) {
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);
  }
  trivet::write_stderr(fmt::format("trivet: standard output cannot be written: {}\n", std::strerror(reason)));
  return trivet::IoError("").exit_code();
}

// Returns the message; quoted arguments, such as file names, are shortened and made printable on one line.
std::string shown(std::string message, std::span<char* const> arguments) {
  for (const std::string_view argument : arguments) {
    const std::string_view name = argument.substr(argument.rfind('=') + 1);  // of --set key=VALUE
    constexpr size_t kShown = 1000;                                          // bytes
    if (name.find('\n') == name.npos && name.size() <= kShown) continue;
    const std::string shorter = trivet::printable_line(trivet::shortened(name, kShown));
    for (size_t at = 0; (at = message.find(name, at)) != message.npos; at += shorter.size())
      message.replace(at, name.size(), shorter);
  }
  return trivet::printable(message);
}

// All launched ranks read the same configuration: rank 0 reports the problem. When rank 0 exits, the launcher kills
// the others, which report the problem themselves only if they survive.
bool leaves_it_to_rank_0(const std::exception& error) {
  constexpr int kMilliseconds = 4000;  // for the launcher to act: its signal ends the wait
  const bool refused = dynamic_cast<const trivet::ConfigError*>(&error) != nullptr;
  return trivet::launched_rank() > 0 && refused && poll(nullptr, 0, kMilliseconds) < 0;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  write_stdout_wholly();
  if (!has_stack()) return trivet::ConfigError("").exit_code();
  // A write past the file-size limit, or to a pipe without a reader, then fails with an error that its caller reports
  // in context: training continues without its terminal.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  const std::span<char* const> arguments(argv, static_cast<size_t>(argc));
  CLI::App app("Trivet: GPT pretraining with tensor, pipeline, data and context parallelism", "trivet");
  app.formatter(trivet::help_formatter());
  app.set_version_flag("--version", trivet::version_text,
                       "Print version, commit, compiler, CPU and back ends, and exit");
  app.require_subcommand(1);
  int exit_code = 0;
  trivet::add_commands(app, exit_code);
  try {
    trivet::naming_keys([&] { app.parse(argc, argv); });
    // A training run's output is also in its folder: the run succeeds if it has completed its steps.
    if (exit_code != 0 || app.got_subcommand("train")) return exit_code;
    return flushed() ? 0 : report_lost_output();
  } catch (const CLI::ParseError& error) {
    std::ostringstream message;
    const int code = app.exit(error, std::cout, message);
    // "A subcommand is required" and "not expected: 4 --rank" say less about a misspelt word.
    const std::string unknown = trivet::unknown_word(app);
    const bool follows =
        dynamic_cast<const CLI::RequiredError*>(&error) || dynamic_cast<const CLI::ExtrasError*>(&error);
    if (!unknown.empty()) trivet::write_stderr(fmt::format("trivet: {}\n", shown(unknown, arguments)));
    trivet::write_stderr(unknown.empty() || !follows ? shown(message.str(), arguments)
                                                     : "Run with --help for more information.\n");
    return code != 0 ? 64 : flushed() ? 0 : report_lost_output();
  } catch (const std::exception& error) {
    if (leaves_it_to_rank_0(error)) return trivet::exit_code_of(error);
    if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
      trivet::write_stderr(
          fmt::format("trivet: {}: {}\n", shown(file->path1().string(), arguments), file->code().message()));
      return trivet::IoError("").exit_code();
    }
    const bool foreign = !dynamic_cast<const trivet::Error*>(&error) && !dynamic_cast<const std::bad_alloc*>(&error);
    if (foreign && std::ferror(stdout)) return report_lost_output();
    trivet::write_stderr(
        fmt::format("trivet: {}{}\n", foreign ? "internal error: " : "", shown(error.what(), arguments)));
    return trivet::exit_code_of(error);
  }
}
