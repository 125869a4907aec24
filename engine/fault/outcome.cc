#include "engine/fault/outcome.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "base/host.h"
#include "base/sink_queue.h"
#include "engine/checkpoint/store.h"

namespace trivet {

void clear_outcome(const std::string& run_dir) { remove_file_if_exists(run_dir + "/outcome.json"); }

bool write_outcome(const std::string& run_dir, const Outcome& outcome) noexcept {
  try {
    const std::string path = run_dir + "/outcome.json";
    if (file_exists(path)) return false;
    if (outcome.exit_code != 0)
      add_to_log(fmt::format("ended with {}{}{}\n", outcome.exit_code, outcome.what.empty() ? "" : ": ", outcome.what));
    OutputFile file(path);
    file.write(nlohmann::ordered_json{{"status", outcome.status},
                                      {"exit_code", outcome.exit_code},
                                      {"root_cause_rank", outcome.root_cause_rank},
                                      {"host", outcome.host},
                                      {"what", outcome.what},
                                      {"step", outcome.step},
                                      {"last_committed_step", last_committed_step(run_dir)}}
                   .dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
               "\n");
    try {
      return file.commit_as_first();
    } catch (const IoError&) {  // the file system has no hard links
      file.commit();
      return true;
    }
  } catch (const std::exception&) {
    return false;
  }
}

int64_t last_committed_step(const std::string& run_dir) noexcept {
  try {
    return CheckpointStore(run_dir + "/checkpoints").latest().value_or(-1);
  } catch (const std::exception&) {
    return -1;
  }
}

}  // namespace trivet
