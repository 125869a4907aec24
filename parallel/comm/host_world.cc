#include "parallel/comm/host_world.h"

#include <algorithm>

namespace trivet {

HostWorld::HostWorld(Communicator& world)
    : world_(world), device_(create_cpu_device()), stream_(device_->create_compute_stream()) {}

std::string HostWorld::broadcast(const std::string& mine) {
  const int64_t bytes = broadcast(static_cast<int64_t>(mine.size()));
  std::string text = mine;
  text.resize(static_cast<size_t>(bytes));
  world_.broadcast({text.data(), DType::u8, {bytes}}, 0, *stream_);
  return text;
}

HostWorld::RankText HostWorld::first_text(const std::string& mine) {
  constexpr int64_t kBytes = 1000;
  const int64_t first = -max(mine.empty() ? -size() : -rank());
  if (first == size()) return {};
  std::vector<char> text(kBytes, '\0');
  std::copy_n(mine.begin(), std::min<size_t>(mine.size(), kBytes - 1), text.begin());
  world_.broadcast({text.data(), DType::u8, {kBytes}}, static_cast<int>(first), *stream_);
  return {static_cast<int>(first), text.data()};
}

std::string HostWorld::first_problem(const std::string& mine) {
  const auto [rank, text] = first_text(mine);
  if (rank < 0) return {};
  const bool alone = size() > 1 && max(mine.starts_with(text) ? 0 : 1) > 0;  // text may be truncated
  return alone ? "rank " + std::to_string(rank) + ": " + text : text;
}

}  // namespace trivet
