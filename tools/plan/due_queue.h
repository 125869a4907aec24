// DueQueue: what is due when, earliest first: a heap of times, each with a list of what is due then. Ranks that do the
// same are due together, so that most of what is added joins a list that is there.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

namespace trivet {

class DueQueue {
 public:
  struct Item {
    uint32_t what = 0;
    uint32_t version = 0;
  };
  bool empty() const { return heap_.empty(); }
  int64_t time() const { return heap_.front().time; }  // REQUIRES: not empty

  // time: not before what was taken last.
  void add(int64_t time, Item item) {
    Recent& recent = recent_of(time);
    if (recent.time != time) recent = {time, add_list(time)};
    uint32_t& first = lists_[recent.list];
    if (free_node_ == kNone) free_node_ = static_cast<uint32_t>(nodes_.size()), nodes_.push_back({{}, kNone});
    const uint32_t node = free_node_;
    free_node_ = nodes_[node].next;
    nodes_[node] = {item, first};
    first = node;
  }

  // One of what is due at time(). REQUIRES: not empty
  Item take() {
    const Due due = heap_.front();
    const uint32_t node = lists_[due.list];
    const Item item = nodes_[node].item;
    lists_[due.list] = nodes_[node].next;
    nodes_[node].next = free_node_;
    free_node_ = node;
    if (lists_[due.list] == kNone) {
      std::ranges::pop_heap(heap_, std::greater<>());
      heap_.pop_back();
      free_lists_.push_back(due.list);
      if (Recent& recent = recent_of(due.time); recent.time == due.time) recent = {};
    }
    return item;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    Item item;
    uint32_t next;
  };
  struct Due {
    int64_t time;
    uint32_t list;
    bool operator>(const Due& other) const { return time > other.time; }
  };
  struct Recent {
    int64_t time = -1;
    uint32_t list = kNone;
  };

  Recent& recent_of(int64_t time) {
    return recent_[static_cast<uint64_t>(time) * 0x9E3779B97F4A7C15ull >> (64 - kRecentBits)];
  }
  uint32_t add_list(int64_t time) {
    if (free_lists_.empty()) free_lists_.push_back(static_cast<uint32_t>(lists_.size())), lists_.push_back(kNone);
    const uint32_t list = free_lists_.back();
    free_lists_.pop_back();
    heap_.push_back({time, list});
    std::ranges::push_heap(heap_, std::greater<>());
    return list;
  }

  std::vector<Due> heap_;
  std::vector<uint32_t> lists_, free_lists_;  // the first node of each list
  std::vector<Node> nodes_;
  uint32_t free_node_ = kNone;
  static constexpr int kRecentBits = 10;
  std::array<Recent, 1 << kRecentBits> recent_;  // lists by a hash of their times: the last one of each
};

}  // namespace trivet
