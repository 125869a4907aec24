#include "engine/checkpoint/mirror.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/host.h"
#include "engine/checkpoint/open_checkpoint.h"

namespace trivet {
namespace {

struct GivenUp : std::exception {};

}  // namespace

// What its thread uses, which may outlive the mirror.
struct CheckpointMirror::State {
  State(CheckpointStore f, CheckpointStore t, const Retention& k) : from(std::move(f)), to(std::move(t)), keep(k) {}

  void run();
  void copy(int64_t step);
  void copy_file(const std::filesystem::path& file, const std::string& folder);
  void go_on() {  // at each piece that was written or read
    if (ends) throw GivenUp();
    moved = now_seconds();
  }

  const CheckpointStore from, to;
  const Retention keep;
  std::mutex mutex;
  std::condition_variable changed;
  int64_t wanted = -1;  // the step to be copied next; -1: none
  bool busy = false;
  std::atomic<bool> ends = false;
  std::atomic<double> moved = 0;  // when it last went on
  std::string problem;
};

CheckpointMirror::CheckpointMirror(const CheckpointStore& from, const CheckpointStore& to, const Retention& keep)
    : state_(std::make_shared<State>(from, to, keep)) {
  to.disk().make_directories(to.folder());
  const std::string mark = to.folder() + "/mirror-of", mine = std::filesystem::absolute(from.folder()).string() + "\n";
  const std::string marked = file_exists(mark) ? read_small_file(mark, 65536) : "";
  if (marked != mine && !to.steps().empty())
    throw ConfigError(fmt::format("checkpoint.mirror: {} has checkpoints {}, expected a folder of this run's own",
                                  to.folder(),
                                  marked.empty() ? "of a run" : "of " + marked.substr(0, marked.size() - 1)));
  if (marked != mine) write_file(mark, mine);
  to.prepare();
  thread_ = std::thread([state = state_] { state->run(); });
}

CheckpointMirror::~CheckpointMirror() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true, state_->wanted = -1;
  }
  state_->changed.notify_all();
  std::unique_lock lock(state_->mutex);
  const bool ended = state_->changed.wait_for(lock, std::chrono::seconds(1), [&] { return !state_->busy; });
  lock.unlock();
  ended ? thread_.join() : thread_.detach();
}

void CheckpointMirror::copy(int64_t step) {
  const std::lock_guard lock(state_->mutex);
  state_->wanted = step;
  state_->changed.notify_all();
}

bool CheckpointMirror::wait(double seconds) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  const auto done = [&] { return s.wanted < 0 && !s.busy; };
  if (s.changed.wait_for(lock, std::chrono::duration<double>(seconds), done)) return true;
  const bool stalled = s.busy && now_seconds() - s.moved > kStalled;
  if (stalled)
    s.problem = fmt::format("checkpoint.mirror: the last step is not copied: {} has taken nothing for {} s",
                            s.to.folder(), kStalled);
  return stalled;
}

std::string CheckpointMirror::take_problem() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->problem, {});
}

void CheckpointMirror::State::run() {
  std::unique_lock lock(mutex);
  while (changed.wait(lock, [&] { return wanted >= 0 || ends; }), wanted >= 0) {
    const int64_t step = std::exchange(wanted, -1);
    busy = true;
    moved = now_seconds();
    lock.unlock();
    std::string text;
    try {
      copy(step);
    } catch (const GivenUp&) {
    } catch (const std::exception& error) {
      text = fmt::format("checkpoint.mirror: step {} is not copied: {}", step, error.what());
    }
    lock.lock();
    busy = false;
    // One that was removed meanwhile has a newer one behind it.
    if (!text.empty() && wanted < 0) problem = text;
    changed.notify_all();
  }
}

// A file of a checkpoint, durable.
void CheckpointMirror::State::copy_file(const std::filesystem::path& file, const std::string& folder) {
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

void CheckpointMirror::State::copy(int64_t step) {
  // A step that a resumed run saved again has another manifest.
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
  } catch (const std::exception&) {
    std::error_code ignored;
    std::filesystem::remove_all(temporary, ignored);
    throw;
  }
  to.remove_old(step, temporary, keep);
}

}  // namespace trivet
