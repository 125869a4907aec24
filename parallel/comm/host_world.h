// HostWorld: exchanges times, votes, strings and ids in host memory between the ranks of a group. (Training moves
// device memory over its own communicators.) Every call except send and receive is collective and returns its result.
// To be used by one thread per rank.
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
  // `world` must transfer host memory and outlive this object.
  explicit HostWorld(Communicator& world);

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  void barrier() { world_.barrier(); }
  Communicator& world() { return world_; }

  // Reductions over the ranks. T: int64_t, or a struct of int64_t members only.
  template <class T>
  T sum(T numbers) {
    world_.all_reduce(tensor_of(&numbers), Reduce::sum, *stream_);
    return numbers;
  }
  int64_t max(int64_t number) {
    world_.all_reduce(tensor_of(&number), Reduce::max, *stream_);
    return number;
  }
  // Returns the ranks' values, or their lists (all of the same length) concatenated, in rank order.
  template <class T>
  std::vector<T> gather(const T& mine) {
    return gather(std::vector<T>{mine});
  }
  template <class T>
  std::vector<T> gather(const std::vector<T>& mine) {
    std::vector<T> all(mine.size() * static_cast<size_t>(size()));
    world_.all_gather(tensor_of(mine.data(), mine.size()), tensor_of(all.data(), all.size()), *stream_);
    return all;
  }

  template <class T>
  void send(T number, int to) {
    world_.send(tensor_of(&number), to, *stream_);
  }
  template <class T>
  T receive(int from) {
    T number;
    world_.recv(tensor_of(&number), from, *stream_);
    return number;
  }

  // Returns rank 0's value.
  template <class T>
  T broadcast(T mine) {
    world_.broadcast(tensor_of(&mine), 0, *stream_);
    return mine;
  }
  std::string broadcast(const std::string& mine);
  // The first rank with a non-empty string, and that string, truncated to 999 characters; rank -1: all are empty.
  struct RankText {
    int rank = -1;
    std::string text{};
  };
  RankText first_text(const std::string& mine);
  // The same in the form "rank 3: TEXT", or TEXT if all ranks report the same text; empty if all strings are empty.
  std::string first_problem(const std::string& mine);

 private:
  template <class T>
  static Tensor tensor_of(const T* numbers, size_t count = 1) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(int64_t) == 0);
    return {const_cast<T*>(numbers), DType::i64, {static_cast<int64_t>(count * sizeof(T) / sizeof(int64_t))}};
  }

  Communicator& world_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;  // runs inline: a call is complete when it returns
};

}  // namespace trivet
