#include "engine/train/non_finite.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fmt/format.h>

namespace trivet {
namespace {

// "" where all gradients of this rank are finite.
std::string describe_gradients(const RankState& state, int pipeline_rank, int rank, Device& device, Stream& stream) {
  for (const OwnedPiece& piece : state.flat.owned) {
    std::vector<float> grad(static_cast<size_t>(piece.grad.numel()));
    device.copy_to_host(piece.grad, grad.data(), stream);
    stream.synchronize();
    const auto is_bad = [](float g) { return !std::isfinite(g); };
    const auto bad = std::find_if(grad.begin(), grad.end(), is_bad);
    if (bad == grad.end()) continue;
    const auto nans = std::count_if(bad, grad.end(), [](float g) { return std::isnan(g); });
    const auto infs = std::count_if(bad, grad.end(), [](float g) { return std::isinf(g); });
    const auto next = std::find_if_not(bad, grad.end(), is_bad);
    std::string around;
    if (bad != grad.begin()) around += fmt::format("; before it {:.6g}", *(bad - 1));
    if (next != grad.end()) around += fmt::format("; the next finite one {:.6g}", *next);
    return fmt::format(
        "{} of the {} gradients of {} on rank {} (pipeline rank {}) are not finite ({} NaN, {} infinite), "
        "the first is {} at {}{}",
        nans + infs, grad.size(), piece.param->spec.name, rank, pipeline_rank, nans, infs, *bad,
        piece.first + (bad - grad.begin()), around);
  }
  return "";
}

}  // namespace

NonFinite find_non_finite(RankState& state, int pipeline_rank, float own_loss, Communicator& world, Device& device,
                          Stream& stream) {
  const auto first_rank_where = [&](bool mine) {
    const Tensor number = state.adam.norm();
    const float negative = -static_cast<float>(mine ? world.rank() : world.size());
    device.copy_to_device(&negative, number, stream);
    world.all_reduce(number, Reduce::max, stream);
    float smallest = 0;
    device.copy_to_host(number, &smallest, stream);
    stream.synchronize();
    return static_cast<int>(-smallest);
  };
  NonFinite found;
  const int loss_rank = first_rank_where(!std::isfinite(own_loss));
  if (loss_rank < world.size()) {
    found.rank = loss_rank;
    found.what = fmt::format("the loss of rank {} is not finite, ", loss_rank);
  }
  std::array<char, 512> text{};
  const std::string mine = describe_gradients(state, pipeline_rank, world.rank(), device, stream);
  std::strncpy(text.data(), mine.c_str(), text.size() - 1);
  const int finder = first_rank_where(!mine.empty());
  if (finder == world.size()) {
    found.what += "all gradients are finite";
    return found;
  }
  if (found.rank < 0) found.rank = finder;
  Scratch::Frame frame(state.scratch);
  const Tensor carrier = frame.tensor(DType::u8, {static_cast<int64_t>(text.size())});
  device.copy_to_device(text.data(), carrier, stream);
  world.broadcast(carrier, finder, stream);
  device.copy_to_host(carrier, text.data(), stream);
  stream.synchronize();
  found.what += text.data();
  return found;
}

}  // namespace trivet
