// A dataset for benchmarks, in which sizes matter and contents do not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/indexed_dataset.h"
#include "kernels/philox.h"

namespace trivet {

// PREFIX.bin and PREFIX.idx: one document of 2^17 tokens below `vocab`.
inline void write_random_tokens(const std::string& prefix, uint32_t vocab) {
  IndexedDatasetWriter writer(prefix, TokenType::u16);
  std::vector<int32_t> tokens(1 << 17);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(philox4x32(i, 0, 1).w[0] % vocab);
  writer.add_document(tokens);
  writer.finish();
}

}  // namespace trivet
