// ChunkTable: a kernel parameter that lists the tensors to process in one launch. Each tensor is split into chunks (one
// per block or warp) that are numbered consecutively across all tensors.
//
// Since CUDA 12.1, parameters may take up to 32764 bytes (4096 before). They reside in constant memory, where a warp's
// reads of the same address cost a single read; `const __grid_constant__` keeps a kernel from copying them.
#pragma once

#include <cstdint>
#include <utility>

namespace trivet {

template <class Entry, int kMost_>
struct ChunkTable {
  static constexpr int kMost = kMost_;
  int count = 0;
  int64_t first[kMost + 1] = {};  // each tensor's first chunk; at [count], the number of chunks
  Entry entry[kMost] = {};

  // The index of the tensor that contains this chunk, by bisection. REQUIRES: 0 <= chunk < first[count].
  __device__ int find(int64_t chunk) const {
    int low = 0, high = count;  // first[low] <= chunk < first[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first[middle] <= chunk) low = middle;
      else high = middle;
    }
    return low;
  }
};

// Splits a list of tensors over tables and calls launch(table, chunks) for each table. make(element) returns the
// element's entry and number of chunks; elements without chunks are skipped.
template <class Table, class List, class Make, class Launch>
void launch_tables(const List& list, const Make& make, const Launch& launch) {
  Table table;
  const auto flush = [&] {
    if (table.count > 0) launch(table, table.first[table.count]);
    table.count = 0;
  };
  for (const auto& element : list) {
    const auto [entry, chunks] = make(element);
    if (chunks == 0) continue;
    table.entry[table.count] = entry;
    table.first[table.count + 1] = table.first[table.count] + chunks;
    if (++table.count == Table::kMost) flush();
  }
  flush();
}

}  // namespace trivet
