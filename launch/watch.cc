// trivet watch RUN_DIR: shows a run's progress from another terminal. trivet report RUN_DIR: writes an HTML report.
#include "tools/watch/watch.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <thread>

#include "launch/commands.h"

namespace trivet {
namespace {

// Keeps watching after the run stops, because a stopped run will be requeued or restarted.
void watch(const std::string& run_dir) {
  bool was_running = false;
  for (std::ptrdiff_t lines = 0;; std::this_thread::sleep_for(std::chrono::seconds(1))) {
    const RunRecord run(run_dir, 2 << 20);  // enough for more than a thousand steps
    const TextBlock block = describe_progress(run, static_cast<double>(std::time(nullptr)), 32);
    const std::string text = render({block}, terminal_columns(STDOUT_FILENO));
    fmt::print("{}{}", lines > 0 ? fmt::format("\x1b[{}A\x1b[J", lines) : "", text);
    flush_output();
    was_running = was_running || run.running;
    if (!(run.running || (was_running && run.stopped)) || !isatty(STDOUT_FILENO)) return;
    lines = std::ranges::count(text, '\n');
  }
}

void report(const std::string& run_dir, const std::string& page) {
  const RunRecord run(run_dir);
  check_writable({page}, {run_dir + "/metrics.jsonl", run_dir + "/config.resolved.yaml"});
  write_file(page, html_report(run, static_cast<double>(std::time(nullptr))));
  if (!page.starts_with("/dev/")) fmt::print("Report: {}\n", page);
}

}  // namespace

void add_watch_commands(CLI::App& app) {
  const auto run_dir = std::make_shared<std::string>(), page = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("watch", "show a run: progress, time left, loss, speed, last save");
  add_argument(*command, "RUN_DIR", *run_dir, "train.run_dir of the run, or a copy of it");
  command->callback([=] { watch(*run_dir); });
  command = app.add_subcommand("report", "write a page about a run: curves, where its time went, events");
  add_argument(*command, "RUN_DIR", *run_dir, "train.run_dir of the run, or a copy of it");
  command->add_option("--out", *page, "file to write; default: RUN_DIR/report.html")
      ->option_text("FILE")
      ->check(file_name());
  command->callback([=] { report(*run_dir, page->empty() ? *run_dir + "/report.html" : *page); });
}

}  // namespace trivet
