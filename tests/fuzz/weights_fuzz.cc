// Imported weights: an llm.c file or a Hugging Face folder. Either they cause one of our errors, or every tensor can
// be read, and a Hugging Face folder has the same bits after it is written and read again. The input is one byte,
//   L   and an llm.c file; or
//   H   and three lengths of two bytes: config.json, model.safetensors.index.json, a shard; the rest is another shard.
//       Without an index the first shard is model.safetensors.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.h"
#include "tests/fuzz/folder.h"
#include "tools/convert/gpt_weights.h"

namespace {

using namespace trivet;
namespace fs = std::filesystem;

void write(const std::string& path, std::string_view bytes) {
  if (bytes.empty()) fs::remove(path);
  else std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

void expect_same(GptWeights& found, GptWeights& expected) {
  if (found.tensors().size() != expected.tensors().size()) std::abort();
  for (const ModelTensor& tensor : expected.tensors()) {
    const std::vector<float> a = found.read(tensor), b = expected.read(tensor);
    if (a.size() != b.size() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0) std::abort();
  }
}

void read_llmc(const std::string& folder, std::string_view bytes) {
  const std::string path = folder + "/model.bin";
  write(path, bytes);
  const auto weights = open_llmc(path);
  expect_same(*open_llmc(path), *weights);
}

void read_hf(const std::string& folder, std::string_view bytes) {
  if (bytes.size() < 6) return;
  std::string_view parts[4];
  std::string_view rest = bytes.substr(6);
  for (size_t i = 0; i < 3; ++i) {
    const size_t length =
        static_cast<uint8_t>(bytes[2 * i]) | static_cast<size_t>(static_cast<uint8_t>(bytes[2 * i + 1])) << 8;
    parts[i] = rest.substr(0, length);
    rest.remove_prefix(parts[i].size());
  }
  parts[3] = rest;
  const bool index = !parts[1].empty();
  write(folder + "/config.json", parts[0]);
  write(folder + "/model.safetensors.index.json", parts[1]);
  write(folder + "/model.safetensors", index ? "" : parts[2]);
  write(folder + "/1", index ? parts[2] : "");
  write(folder + "/2", index ? parts[3] : "");
  const auto weights = open_hf(folder);
  fs::remove_all(folder + "/again");
  write_hf(*weights, folder + "/again", {});
  expect_same(*open_hf(folder + "/again"), *weights);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] == 'L') read_llmc(folder.path, bytes);
    else read_hf(folder.path, bytes);
  } catch (const DataError&) {
  } catch (const IoError&) {  // a shard is missing
  }
  return 0;
}
