// The positions of ranks in the grid of tensor (tp), context (cp), data (dp) and pipeline (pp) parallel ranks, and
// their groups: arithmetic without communication. axes.h has the table of axes.
//
// order: the axes from the innermost to the outermost. In "tp-dp-pp" (Megatron's default) consecutive ranks are tensor-
// parallel peers, then data-, then pipeline-parallel: rank = tp + t * (dp + d * pp).
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/axes.h"

namespace trivet {

using AxisOrder = std::array<Axis, kAxes.size()>;
// Every order names these axes. Their order is Megatron's default, and the other axes are then outermost.
inline constexpr std::array kNamedAxes = {Axis::tp, Axis::dp, Axis::pp};
inline constexpr AxisOrder kUsualOrder = [] {
  AxisOrder order{};
  auto end = std::ranges::copy(kNamedAxes, order.begin()).out;
  for (const AxisInfo& row : kAxes)
    if (std::ranges::count(kNamedAxes, row.axis) == 0) *end++ = row.axis;
  return order;
}();
// Names of the table separated by '-': tp, dp and pp once each, others at most once; those left out are outermost.
// Empty where the text is invalid.
std::optional<AxisOrder> parse_axis_order(std::string_view text);
std::string to_text(const AxisOrder& order);  // the same, without the axes that may be left out

struct MeshPosition : PerAxis<int> {
  MeshPosition(Entries entries = {}) : PerAxis(0) { set(entries); }  // 0 on the others
};

struct MeshShape : PerAxis<int> {
  MeshShape(Entries sizes = {}, const AxisOrder& axis_order = kUsualOrder)  // 1 on the others
      : PerAxis(1), order(axis_order) {
    set(sizes);
  }
  int size(AxisSet axes) const;  // of a group
  int world() const { return size(kGradientAxes) * size(kModelAxes); }

  AxisOrder order;
};

MeshPosition position_of(int rank, const MeshShape& shape);
int rank_of(const MeshPosition& position, const MeshShape& shape);
// For people, the axes that every order names and those of several ranks: "rank 3 (tp 1, pp 0, dp 1)", and
// "tensor 2 x pipeline 1 x data 2".
std::string rank_name(int rank, const MeshShape& shape);
std::string sizes_text(const MeshShape& shape);
// The ranks that differ from this position in `axes` only, ascending; and the index of this one among them.
std::vector<int> group_members(const MeshPosition& at, const MeshShape& shape, AxisSet axes);
int place_in_group(const MeshPosition& at, const MeshShape& shape, AxisSet axes);

}  // namespace trivet
