#include "engine/checkpoint/mirror.h"

#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "engine/checkpoint/open_checkpoint.h"

namespace trivet {
namespace {

struct GivenUp : std::exception {};

// A file of a checkpoint, durable.
void copy_file(const std::string& from, const std::string& to, const Disk& disk, const std::atomic<bool>& give_up) {
  std::ifstream in(from, std::ios::binary);
  Disk::File out(disk, to, static_cast<int64_t>(std::filesystem::file_size(from)));
  std::vector<char> piece(4 << 20);
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())) || in.gcount() > 0) {
    if (give_up) throw GivenUp();
    out.write({piece.data(), static_cast<size_t>(in.gcount())});
  }
  out.sync();
}

}  // namespace

CheckpointMirror::CheckpointMirror(CheckpointStore from, CheckpointStore to, const Retention& keep)
    : from_(std::move(from)), to_(std::move(to)), keep_(keep) {
  to_.disk().make_directories(to_.folder());
  to_.prepare();
  thread_ = std::thread([this] { run(); });
}

CheckpointMirror::~CheckpointMirror() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true, wanted_ = -1;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointMirror::copy(int64_t step) {
  const std::lock_guard lock(mutex_);
  wanted_ = step;
  changed_.notify_all();
}

bool CheckpointMirror::wait(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return wanted_ < 0 && !busy_; });
}

std::string CheckpointMirror::take_problem() {
  const std::lock_guard lock(mutex_);
  return std::exchange(problem_, {});
}

void CheckpointMirror::run() {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, [&] { return wanted_ >= 0 || ends_; }), wanted_ >= 0) {
    const int64_t step = std::exchange(wanted_, -1);
    busy_ = true;
    lock.unlock();
    std::string problem;
    try {
      copy_now(step);
    } catch (const GivenUp&) {
    } catch (const std::exception& error) {
      problem = fmt::format("checkpoint.mirror: step {} is not copied: {}", step, error.what());
    }
    lock.lock();
    busy_ = false;
    // One that was removed meanwhile has a newer one behind it.
    if (!problem.empty() && wanted_ < 0) problem_ = problem;
    changed_.notify_all();
  }
}

void CheckpointMirror::copy_now(int64_t step) {
  // A step that a resumed run saved again has another manifest.
  const auto manifest = [&](const CheckpointStore& store) {
    const std::string path = store.path_of(step) + "/manifest.json";
    return file_exists(path) ? read_small_file(path, Manifest::kMostBytes) : "";
  };
  if (const std::string copied = manifest(to_); !copied.empty() && copied == manifest(from_)) return;
  const std::string temporary = to_.temporary_path_of(step, "mirror");
  try {
    to_.disk().make_directories(temporary, Disk::Parents::expected);
    for (const auto& file : std::filesystem::directory_iterator(from_.path_of(step)))
      copy_file(file.path().string(), temporary + "/" + file.path().filename().string(), to_.disk(), ends_);
    verify_checkpoint(open_checkpoint(temporary), [&](int64_t) {
      if (ends_) throw GivenUp();
    });
    to_.commit(step, temporary);
  } catch (const std::exception&) {
    std::error_code ignored;
    std::filesystem::remove_all(temporary, ignored);
    throw;
  }
  to_.remove_old(step, temporary, keep_);
}

}  // namespace trivet
