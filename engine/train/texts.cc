#include "engine/train/texts.h"

#include <algorithm>
#include <vector>

namespace trivet {

std::string broadcast_text(Communicator& world, const std::string& mine, Stream& stream) {
  auto bytes = static_cast<int64_t>(mine.size());
  world.broadcast({&bytes, DType::i64, {1}}, 0, stream);
  stream.synchronize();
  std::string text = mine;
  text.resize(static_cast<size_t>(bytes));
  if (bytes > 0) world.broadcast({text.data(), DType::u8, {bytes}}, 0, stream);
  stream.synchronize();
  return text;
}

std::string first_text(Communicator& world, const std::string& mine, Stream& stream) {
  constexpr int64_t kBytes = 1000;
  // The first rank that has one, as the largest of negative numbers.
  int64_t first = mine.empty() ? -world.size() : -world.rank();
  world.all_reduce({&first, DType::i64, {1}}, Reduce::max, stream);
  stream.synchronize();
  const int rank = static_cast<int>(-first);
  if (rank == world.size()) return {};
  std::vector<char> text(kBytes, '\0');
  std::copy_n(mine.begin(), std::min<size_t>(mine.size(), kBytes - 1), text.begin());
  world.broadcast({text.data(), DType::u8, {kBytes}}, rank, stream);
  stream.synchronize();
  return "rank " + std::to_string(rank) + ": " + text.data();
}

}  // namespace trivet
