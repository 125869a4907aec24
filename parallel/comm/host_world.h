// HostWorld: the ranks of a group as they exchange what is in host memory: times, votes, texts, ids. Training itself
// moves a device's memory over communicators of its own.
//
// Every call is collective, and has its result when it returns. For one thread of each rank.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"

namespace trivet {

class HostWorld {
 public:
  // `world`, whose ranks exchange host memory, outlives this.
  explicit HostWorld(Communicator& world);

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  void barrier() { world_.barrier(); }
  Communicator& world() { return world_; }

  // Over the ranks. T: nothing but int64_t.
  template <class T>
  T sum(T numbers) {
    reduce(&numbers, words<T>(), Reduce::sum);
    return numbers;
  }
  int64_t max(int64_t number);
  // [rank], or the ranks' lists one behind the other, all as long as mine.
  template <class T>
  std::vector<T> gather(const T& mine) {
    return gather(std::vector<T>{mine});
  }
  template <class T>
  std::vector<T> gather(const std::vector<T>& mine) {
    std::vector<T> all(mine.size() * static_cast<size_t>(size()));
    gather(mine.data(), all.data(), words<T>() * static_cast<int64_t>(mine.size()));
    return all;
  }

  // Rank 0's.
  template <class T>
  T broadcast(T mine) {
    from_first(&mine, words<T>());
    return mine;
  }
  std::string broadcast(const std::string& mine);
  // The first rank whose text is not empty, and at most 1000 characters of it; rank -1 where all are.
  struct RankText {
    int rank = -1;
    std::string text{};
  };
  RankText first_text(const std::string& mine);
  // "rank 3: TEXT" of it; empty where there is none.
  std::string first_problem(const std::string& mine);

 private:
  template <class T>
  static constexpr int64_t words() {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(int64_t) == 0);
    return sizeof(T) / sizeof(int64_t);
  }
  void reduce(void* numbers, int64_t words, Reduce op);
  void gather(const void* mine, void* all, int64_t words);
  void from_first(void* numbers, int64_t words);

  Communicator& world_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;  // inline: what is called is done
};

}  // namespace trivet
