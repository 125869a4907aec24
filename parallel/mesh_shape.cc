#include "parallel/mesh_shape.h"

#include <algorithm>

#include "base/check.h"

namespace trivet {

std::optional<AxisOrder> parse_axis_order(std::string_view text) {
  AxisOrder order{};
  size_t count = 0;
  AxisSet named;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('-', begin), text.size());
    const auto row = std::ranges::find(kAxes, text.substr(begin, end - begin), &AxisInfo::name);
    if (row == kAxes.end() || named.has(row->axis)) return std::nullopt;
    named.add(row->axis);
    order[count++] = row->axis;
    begin = end + 1;
  }
  for (const Axis needed : kNamedAxes)
    if (!named.has(needed)) return std::nullopt;
  for (size_t i = 1; i < kAxes.size(); ++i) {
    if (named.has(kAxes[i].axis)) continue;
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(count++),
               before = std::find(order.begin(), end, kAxes[i - 1].axis);
    std::copy_backward(before + 1, end, end + 1);
    *(before + 1) = kAxes[i].axis;
  }
  return order;
}

std::string to_text(const AxisOrder& order, bool whole) {
  std::string text;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto row = static_cast<size_t>(order[i]);
    const bool usual = i > 0 && row > 0 && order[i - 1] == kAxes[row - 1].axis;
    if (!whole && usual && std::ranges::count(kNamedAxes, order[i]) == 0) continue;
    text += (i > 0 ? "-" : "") + std::string(kAxes[row].name);
  }
  return text;
}

int MeshShape::size(AxisSet axes) const {
  int size = 1;
  for (const Axis axis : order)
    if (axes.has(axis)) size *= (*this)[axis];
  return size;
}

MeshPosition position_of(int rank, const MeshShape& shape) {
  if (rank < 0 || rank >= shape.world())
    fail("rank " + std::to_string(rank) + " is outside a mesh of " + std::to_string(shape.world()) + " ranks");
  MeshPosition at;
  for (const Axis axis : shape.order) {
    at[axis] = rank % shape[axis];
    rank /= shape[axis];
  }
  return at;
}

int rank_of(const MeshPosition& at, const MeshShape& shape) {
  int rank = 0, stride = 1;
  for (const Axis axis : shape.order) {
    rank += at[axis] * stride;
    stride *= shape[axis];
  }
  return rank;
}

namespace {

// Joins text(row) for each axis worth mentioning, those of a model's ranks before those of its replicas.
template <class Text>
std::string join_axes(const MeshShape& shape, std::string_view between, const Text& text) {
  std::string joined;
  for (const AxisSet axes : {kModelAxes, kGradientAxes})
    for (const AxisInfo& row : kAxes)
      if (axes.has(row.axis) && (shape[row.axis] > 1 || std::ranges::count(kNamedAxes, row.axis) > 0))
        joined.append(joined.empty() ? "" : between).append(text(row));
  return joined;
}

}  // namespace

std::string rank_name(int rank, const MeshShape& shape) {
  const MeshPosition at = position_of(rank, shape);
  const auto text = [&](const AxisInfo& row) { return std::string(row.name) + " " + std::to_string(at[row.axis]); };
  return "rank " + std::to_string(rank) + " (" + join_axes(shape, ", ", text) + ")";
}

std::string sizes_text(const MeshShape& shape) {
  return join_axes(shape, " x ",
                   [&](const AxisInfo& row) { return row.group + (" " + std::to_string(shape[row.axis])); });
}

std::vector<int> group_members(const MeshPosition& at, const MeshShape& shape, AxisSet axes) {
  MeshPosition first = at;
  for (const Axis axis : shape.order)
    if (axes.has(axis)) first[axis] = 0;
  std::vector<int> members{rank_of(first, shape)};
  int stride = 1;
  for (const Axis axis : shape.order) {
    const size_t inner = members.size();
    for (int i = 1; axes.has(axis) && i < shape[axis]; ++i)
      for (size_t member = 0; member < inner; ++member) members.push_back(members[member] + i * stride);
    stride *= shape[axis];
  }
  return members;
}

int place_in_group(const MeshPosition& at, const MeshShape& shape, AxisSet axes) {
  const std::vector<int> members = group_members(at, shape, axes);
  return static_cast<int>(std::lower_bound(members.begin(), members.end(), rank_of(at, shape)) - members.begin());
}

}  // namespace trivet
