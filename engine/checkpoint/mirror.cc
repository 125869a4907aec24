#include "engine/checkpoint/mirror.h"

#include <atomic>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "engine/checkpoint/open_checkpoint.h"

namespace trivet {

// State of the queue's thread, which may outlive the mirror.
struct CheckpointMirror::Copier {
  struct GivenUp {};

  void copy_newest();
  void copy(int64_t step);
  void copy_file(const std::filesystem::path& file, const std::string& folder);
  void go_on() {  // called for each chunk written or read
    if (ends) throw GivenUp();
    ++pieces;
  }
  void tell(const std::string& text) {
    const std::lock_guard lock(mutex);
    problem = "checkpoint.mirror: " + text;
  }

  const CheckpointStore from, to;
  const Retention keep;
  std::atomic<int64_t> newest = -1, pieces = 0;  // the step to copy; number of chunks written or read
  std::atomic<bool> ends = false;
  std::mutex mutex = {};
  std::string problem = {};
};

CheckpointMirror::CheckpointMirror(const CheckpointStore& from, const CheckpointStore& to, const Retention& keep)
    : copier_(new Copier{from, to, keep}),
      queue_({.write =
                  [copier = copier_](const std::string&) {
                    copier->copy_newest();
                    return true;
                  },
              .unread = [copier = copier_] { return copier->pieces.load(); }}) {
  to.disk().make_directories(to.folder());
  const std::string mark = to.folder() + "/mirror-of", mine = std::filesystem::absolute(from.folder()).string() + "\n";
  if (const std::string marked = file_exists(mark) ? read_small_file(mark, 65536) : "a run\n"; marked != mine) {
    if (!to.steps().empty())
      throw ConfigError(fmt::format("checkpoint.mirror: {} has checkpoints of {}, expected a folder for this run alone",
                                    to.folder(), marked.substr(0, marked.find('\n'))));
    write_file(mark, mine);
  }
  to.prepare();
}

CheckpointMirror::~CheckpointMirror() { copier_->ends = true; }

void CheckpointMirror::copy(int64_t step) {
  copier_->newest = step;
  queue_.push("copy");
}

bool CheckpointMirror::wait(double seconds) {
  if (queue_.drain(seconds)) return true;
  const bool stalled = queue_.stalled_s() > kStalled;
  if (stalled)
    copier_->tell(
        fmt::format("the last step is not copied: {} has accepted no data for {} s", copier_->to.folder(), kStalled));
  return stalled;
}

std::string CheckpointMirror::take_problem() {
  const std::lock_guard lock(copier_->mutex);
  return std::exchange(copier_->problem, {});
}

void CheckpointMirror::Copier::copy_newest() {
  const int64_t step = newest;
  try {
    copy(step);
  } catch (const GivenUp&) {
  } catch (const std::exception& error) {
    // If the checkpoint was removed in the meantime, a newer one follows.
    if (step == newest) tell(fmt::format("step {} is not copied: {}", step, error.what()));
  }
}

// Copies a file of a checkpoint, and makes it durable.
void CheckpointMirror::Copier::copy_file(const std::filesystem::path& file, const std::string& folder) {
  std::ifstream in(file, std::ios::binary);
  Disk::File out(to.disk(), folder + "/" + file.filename().string(),
                 static_cast<int64_t>(std::filesystem::file_size(file)));
  std::vector<char> piece(4 << 20);
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())) || in.gcount() > 0) {
    go_on();
    out.write({piece.data(), static_cast<size_t>(in.gcount())});
  }
  out.sync();
}

void CheckpointMirror::Copier::copy(int64_t step) {
  // A step that a resumed run saved again has a different manifest.
  const auto manifest = [&](const CheckpointStore& store) {
    const std::string path = store.path_of(step) + "/manifest.json";
    return file_exists(path) ? read_small_file(path, Manifest::kMostBytes) : "";
  };
  if (const std::string copied = manifest(to); !copied.empty() && copied == manifest(from)) return;
  const std::string temporary = to.temporary_path_of(step, "mirror");
  try {
    to.disk().make_directories(temporary, Disk::Parents::expected);
    for (const auto& file : std::filesystem::directory_iterator(from.path_of(step)))
      if (std::filesystem::is_regular_file(file.symlink_status())) copy_file(file.path(), temporary);
    verify_checkpoint(open_checkpoint(temporary), [&](int64_t) { go_on(); });
    to.commit(step, temporary);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(temporary, ignored);
    throw;
  }
  to.remove_old(step, temporary, keep);
}

}  // namespace trivet
