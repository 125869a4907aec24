// The safetensors format: named tensors in one file, readable by every framework.
//
//   [0, 8)    u64, little-endian: N, the header size in bytes, at most 100,000,000
//   [8, 8+N)  UTF-8 JSON, starting with '{', space-padded: name -> {"dtype", "shape", "data_offsets": [begin, end]};
//             "__metadata__": string -> string
//   [8+N, …)  the data, row-major; offsets count from here; the tensors cover it without gaps or overlaps
//
// (github.com/huggingface/safetensors, README, "Format".) The reader checks all of this. Errors are DataErrors naming
// the file, the tensor, and the found and expected values.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "kernels/base/dtype.h"

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
  int64_t data_offset = 0;  // in the file: 8 + N

  int64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
};

// `bytes`: the first 8 + N bytes of a file of file_bytes bytes, or all of a shorter one.
SafeTensors parse_safetensors(std::span<const char> bytes, int64_t file_bytes, const std::string& source);
SafeTensors read_safetensors(const InputFile& file);

// The header of a file with these tensors, 8 + N bytes, a multiple of 8. REQUIRES: their data covers [0, last end) in
// the given order.
std::string safetensors_header(const SafeTensors& content);

// Reads elements of type F32, F16 or BF16, starting at byte `offset` of the file.
void read_as_float(const InputFile& file, int64_t offset, std::string_view dtype, std::span<float> to);
bool all_finite(std::span<const float> numbers);
// Throws DataError if an element is NaN or infinite; `where` names file and tensor.
void expect_finite(std::span<const float> numbers, const std::string& where);
// Writes f32, or bf16 rounded to nearest even.
void write_floats(OutputFile& file, std::span<const float> numbers, DType dtype, const std::string& name);

}  // namespace trivet
