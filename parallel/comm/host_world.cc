#include "parallel/comm/host_world.h"

#include <algorithm>

namespace trivet {

HostWorld::HostWorld(Communicator& world)
    : world_(world), device_(create_cpu_device()), stream_(device_->create_compute_stream()) {}

void HostWorld::reduce(Tensor numbers, Reduce op) {
  if (size() > 1) world_.all_reduce(numbers, op, *stream_);
}

void HostWorld::from_first(Tensor data) {
  if (size() > 1) world_.broadcast(data, 0, *stream_);
}

std::string HostWorld::broadcast(const std::string& mine) {
  const int64_t bytes = broadcast(static_cast<int64_t>(mine.size()));
  std::string text = mine;
  text.resize(static_cast<size_t>(bytes));
  if (bytes > 0) from_first({text.data(), DType::u8, {bytes}});
  return text;
}

HostWorld::RankText HostWorld::first_text(const std::string& mine) {
  constexpr int64_t kBytes = 1000;
  const int64_t first = -max(mine.empty() ? -size() : -rank());
  if (first == size()) return {};
  std::vector<char> text(kBytes, '\0');
  std::copy_n(mine.begin(), std::min<size_t>(mine.size(), kBytes - 1), text.begin());
  if (size() > 1) world_.broadcast({text.data(), DType::u8, {kBytes}}, static_cast<int>(first), *stream_);
  return {static_cast<int>(first), text.data()};
}

std::string HostWorld::first_problem(const std::string& mine) {
  const auto [rank, text] = first_text(mine);
  return rank < 0 ? std::string{} : "rank " + std::to_string(rank) + ": " + text;
}

}  // namespace trivet
