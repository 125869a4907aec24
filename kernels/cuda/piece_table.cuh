// PieceTable: what a kernel that works on many tensors in one launch is given, as one of its parameters: a list of
// pieces, each cut into parts (blocks, or runs of elements) that are counted through all of them.
//
// Since CUDA 12.1 parameters may take 32764 bytes (4096 before). They lie in constant memory, where reads by a warp of
// one address cost one; `const __grid_constant__` keeps a kernel from copying them.
#pragma once

#include <cstdint>
#include <utility>

namespace trivet {

template <class Piece, int kMost>
struct PieceTable {
  int count = 0;
  int64_t first[kMost + 1] = {};  // of each piece: its first part; of the last one's successor: how many there are
  Piece piece[kMost] = {};

  // On the host. parts: at least 1.
  void add(const Piece& what, int64_t parts) {
    piece[count] = what;
    first[count + 1] = first[count] + parts;
    ++count;
  }
  bool full() const { return count == kMost; }
  int64_t total() const { return first[count]; }
  void clear() { count = 0; }

  // The piece that has this part, by bisection. REQUIRES: 0 <= part < total().
  __device__ int find(int64_t part) const {
    int low = 0, high = count;  // first[low] <= part < first[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first[middle] <= part) low = middle;
      else high = middle;
    }
    return low;
  }
};

// Tables of the pieces of a list, each handed to launch(table). make(element) is its piece and its number of parts; of
// no parts, it is left out.
template <class Table, class List, class Make, class Launch>
void launch_tables(const List& list, const Make& make, const Launch& launch) {
  Table table;
  for (const auto& element : list) {
    if (const auto [piece, parts] = make(element); parts > 0) table.add(piece, parts);
    if (!table.full()) continue;
    launch(table);
    table.clear();
  }
  if (table.count > 0) launch(table);
}

}  // namespace trivet
