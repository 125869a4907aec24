// A dataset: the input is the length of the .idx, two bytes, then the .idx, then the .bin. Refused by a DataError when
// it is opened, or every token of it can be read.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "engine/data/indexed_dataset.h"
#include "kernels/base/check.h"

namespace {

// In memory where the system has such a folder.
std::string make_folder() {
  const std::string base = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
  std::string name = base + "/trivet-fuzz-XXXXXX";
  if (!mkdtemp(name.data())) std::abort();
  return name;
}

void write(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

struct Folder {
  std::string path = make_folder();
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trivet;
  static const Folder folder;
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const size_t idx = std::min<size_t>(bytes.size(), data[0] | data[1] << 8);
  write(folder.path + "/d.idx", bytes.substr(0, idx));
  write(folder.path + "/d.bin", bytes.substr(idx));
  try {
    const IndexedDataset dataset(folder.path + "/d");
    int64_t tokens = 0;
    std::vector<int32_t> read;
    for (int64_t i = 0; i < dataset.sequences(); ++i) {
      read.resize(static_cast<size_t>(dataset.length(i)));
      dataset.read(dataset.begin(i), read);
      tokens += dataset.length(i);
    }
    if (tokens != dataset.tokens() || dataset.documents() > dataset.sequences()) std::abort();
  } catch (const DataError&) {
  }
  return 0;
}
