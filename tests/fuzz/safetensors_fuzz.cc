// A safetensors file: it is refused with a DataError, or its header survives being written and read again.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/check.h"
#include "engine/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trivet;
  const std::span bytes(reinterpret_cast<const char*>(data), size);
  SafeTensors content;
  try {
    content = parse_safetensors(bytes, static_cast<int64_t>(size), "fuzz.safetensors");
  } catch (const DataError&) {
    return 0;
  }
  const std::string again = safetensors_header(content) + std::string(static_cast<size_t>(content.data_bytes()), '\0');
  const SafeTensors same = parse_safetensors(again, static_cast<int64_t>(again.size()), "again.safetensors");
  if (same.metadata != content.metadata || same.data_bytes() != content.data_bytes()) std::abort();
  for (const SafeTensor& tensor : content.tensors)
    if (std::ranges::find(same.tensors, tensor) == same.tensors.end()) std::abort();
  return 0;
}
