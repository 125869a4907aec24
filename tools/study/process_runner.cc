#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sstream>
#include <thread>

#include "base/check.h"
#include "base/files.h"
#include "base/host.h"
#include "base/text.h"
#include "tools/study/child_process.h"
#include "tools/study/runner.h"

namespace trivet {

std::string failure_reason(const std::string& stderr_text) {
  std::istringstream lines(stderr_text);
  std::string own, boxed, slurm, last;
  bool box_opens = false, in_box = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.size() >= 20 && line.find_first_not_of('-') == std::string::npos) {
      in_box = !in_box;
      box_opens = in_box;
    } else if (std::ranges::any_of(line, [](unsigned char c) { return std::isalpha(c) != 0; })) {
      if (line.starts_with("trivet: ") || line.starts_with("[rank ") || line.starts_with("netlab: ")) own = line;
      if (line.starts_with("srun: error: ")) slurm = line;
      if (box_opens) boxed = line;
      box_opens = false;
      last = line;
    }
  }
  std::string reason = !own.empty() ? own : !boxed.empty() ? boxed : !slurm.empty() ? slurm : last;
  constexpr size_t kMost = 1000;
  if (reason.size() > kMost) reason.resize(kMost);
  return reason;
}

std::vector<std::string> command_of(const Study& study, const Point& point, const std::string& program,
                                    const std::string& run_dir) {
  std::vector<std::string> command = launch_command(point.launch, {program, "train", study.base});
  for (const std::string& set : point.sets) command.insert(command.end(), {"--set", set});
  command.insert(command.end(), {"--set", "train.run_dir=" + run_dir});
  return command;
}

namespace {

// The launcher, with its arguments from the study.
std::string launcher_text(const Launch& launch) {
  std::string text = std::string(word_of(launch.launcher)) + " " + launch_text(launch);
  std::ranges::replace(text, '\n', ' ');
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

// Why a run did not exit with 0, and how many steps it completed. Never empty.
std::string reason_of(const Study& study, const Point& point, const std::string& run_dir, const ChildEnd& end) {
  int64_t done = 0;
  if (const std::string path = run_dir + "/metrics.jsonl"; std::filesystem::exists(path))
    for_each_line(path, [&](const std::string& line, int64_t) { done += line.starts_with("{\"step\":"); });
  const std::string log = run_dir + "/stderr.log";
  const std::string said = file_exists(log) ? failure_reason(read_small_file(log, INT64_MAX)) : "";
  const std::string reached = fmt::format("after {} of {} steps", done, point.steps);
  if (end.how == ChildEnd::timed_out)
    return fmt::format("took longer than timeout_minutes ({:g}), {}", study.timeout_minutes, reached);
  if (end.how == ChildEnd::exited)
    return said.empty() ? fmt::format("exit code {} {}, and no message", end.code, reached) : said;
  const std::string killed = fmt::format("killed by signal {} ({}) {}", end.code, ::strsignal(end.code), reached);
  if (!said.empty()) return killed + ": " + said;
  return killed + (end.code == SIGKILL ? ": by hand, or by the kernel for lack of memory (dmesg tells)" : "");
}

}  // namespace

RunPoint process_runner(const Study& study, std::string program, std::function<bool()> stop_asked,
                        Provenance provenance) {
  return [&study, program = std::move(program), stop_asked = std::move(stop_asked), provenance = std::move(provenance)](
             const Point& point, const PlannedRun& run) -> std::optional<RunRow> {
    double load = 0;
    ::getloadavg(&load, 1);
    RunRow row;
    row.provenance = provenance;
    row.provenance["load"] = fmt::format("{:.2f}", load);
    row.provenance["threads"] = std::to_string(point.threads);
    row.provenance["launcher"] = launcher_text(point.launch);
    row.folder = folder_of(point, run);
    const std::string run_dir = study.out + "/" + row.folder;
    empty_folder(run_dir);
    const std::vector<std::string> command = command_of(study, point, program, run_dir);
    row.command = shell_text(command);
    row.started = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));

    const double begin = now_seconds();
    const ChildEnd end = run_child({.arguments = command,
                                    .stdout_path = run_dir + "/stdout.log",
                                    .stderr_path = run_dir + "/stderr.log",
                                    .timeout_seconds = 60 * study.timeout_minutes},
                                   stop_asked);
    row.seconds = now_seconds() - begin;
    row.exit_code = end.code;
    if (end.how == ChildEnd::stopped) return std::nullopt;
    if (end.how == ChildEnd::exited && end.code == 0) {
      row.reason = read_metrics(run_dir + "/metrics.jsonl", point.steps, study.warmup_steps, row);
      if (row.reason.empty()) row.metrics["memory_bytes"] = static_cast<double>(point.memory_bytes);
      if (row.reason.empty() && point.launch.launcher != Launcher::srun)
        row.metrics["peak_rss_bytes"] = static_cast<double>(end.peak_rss_bytes);
    } else {
      row.reason = reason_of(study, point, run_dir, end);
    }
    if (!row.reason.empty()) row.outcome = end.how == ChildEnd::timed_out ? RunEnd::timed_out : RunEnd::failed;
    // Every run writes a trace, so that all are measured alike; one trace per point is enough to keep.
    std::error_code ignored;
    if (run.repeat > 1 || run.copy > 1) std::filesystem::remove(run_dir + "/trace.json", ignored);
    return row;
  };
}

}  // namespace trivet
