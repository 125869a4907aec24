// A folder for a fuzz target's files, in memory if the system has /dev/shm; removed at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace trivet::fuzz {

struct Folder {
  std::string path =
      std::filesystem::is_directory("/dev/shm") ? "/dev/shm/trivet-fuzz-XXXXXX" : "/tmp/trivet-fuzz-XXXXXX";
  Folder() {
    if (!mkdtemp(path.data())) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

}  // namespace trivet::fuzz
