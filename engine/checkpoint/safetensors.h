// The safetensors format: named tensors in one file, readable by every framework.
//
//   [0, 8)    u64, little-endian: N, the bytes of the header, at most 100,000,000
//   [8, 8+N)  UTF-8 JSON, from '{' on, padded with spaces: name -> {"dtype", "shape", "data_offsets": [begin, end]};
//             "__metadata__": text -> text
//   [8+N, …)  the data, row-major; offsets count from here; the tensors cover it without holes and overlaps
//
// (github.com/huggingface/safetensors, README, "Format".) Readers hold a file to every one of these, so no byte of it
// is without meaning. Errors are DataErrors that name the file, the tensor, what was found and what was expected.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"

namespace trivet {

struct SafeTensor {
  std::string name;
  std::string dtype;  // the format's name: F32, BF16, …
  std::vector<int64_t> shape{};
  int64_t begin = 0, end = 0;  // bytes, from the start of the data
  bool operator==(const SafeTensor&) const = default;
};

struct SafeTensors {
  std::vector<SafeTensor> tensors{};  // in the order of the data
  std::map<std::string, std::string> metadata{};
  int64_t data_offset = 0;  // of the file: 8 + N

  const SafeTensor* find(const std::string& name) const;
  int64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
};

// `bytes`: the first 8 + N bytes, or all there are, of a file of file_bytes.
SafeTensors parse_safetensors(std::span<const char> bytes, int64_t file_bytes, const std::string& source);
SafeTensors read_safetensors(const InputFile& file);

// The header of a file with these tensors, 8 + N bytes, a multiple of 8. REQUIRES: their data cover [0, the last end)
// in the order given.
std::string safetensors_header(const SafeTensors& content);

// Elements of a tensor as fp32, from F32, F16 or BF16. `to` is as long as the tensor.
void read_as_float(const InputFile& file, const SafeTensors& content, const SafeTensor& tensor, std::span<float> to);

}  // namespace trivet
