// MemoryPlan: the bytes that one rank holds, by purpose: an item an arena.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trivet {

struct MemoryItem {
  std::string name;
  int64_t bytes = 0;
  bool operator==(const MemoryItem&) const = default;
};

struct MemoryPlan {
  std::vector<MemoryItem> items;
  int64_t total() const {
    int64_t sum = 0;
    for (const MemoryItem& item : items) sum += item.bytes;
    return sum;
  }
};

}  // namespace trivet
