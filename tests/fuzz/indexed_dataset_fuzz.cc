// A dataset: the input is the length of the .idx in two bytes, then the .idx, then the .bin. Either the dataset is
// refused with a DataError, or all of its tokens can be read.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/data/indexed_dataset.h"
#include "tests/fuzz/folder.h"

namespace {

void write(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trivet;
  static const fuzz::Folder folder;
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
    if (tokens != dataset.tokens()) std::abort();
  } catch (const DataError&) {
  }
  return 0;
}
