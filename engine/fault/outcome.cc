#include "engine/fault/outcome.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/files.h"
#include "engine/checkpoint/store.h"

namespace trivet {

void clear_outcome(const std::string& run_dir) { remove_file_if_exists(run_dir + "/outcome.json"); }

bool write_outcome(const std::string& run_dir, const Outcome& outcome) noexcept {
  try {
    const std::string path = run_dir + "/outcome.json";
    if (file_exists(path)) return false;
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    static std::atomic<int> number = 0;  // of this process's attempts: ranks that are threads
    const std::string own = fmt::format("{}.{}-{}-{}", path, host, getpid(), number++);
    OutputFile file(own);
    file.write(nlohmann::ordered_json{{"status", outcome.status},
                                      {"exit_code", outcome.exit_code},
                                      {"root_cause_rank", outcome.root_cause_rank},
                                      {"host", outcome.host},
                                      {"what", outcome.what},
                                      {"step", outcome.step},
                                      {"last_committed_step", last_committed_step(run_dir)}}
                   .dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
               "\n");
    file.commit();
    // link() and not rename(): the second to come must not replace the first.
    bool first = link(own.c_str(), path.c_str()) == 0;
    if (!first && errno != EEXIST) first = rename(own.c_str(), path.c_str()) == 0;  // a file system without links
    unlink(own.c_str());
    return first;
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
