// The positions of ranks in the grid of tensor (tp), context (cp), data (dp) and pipeline (pp) parallel ranks, and
// their groups: arithmetic without communication. See axes.h for the table of axes.
//
// order: the axes from the innermost to the outermost. In "tp-cp-dp-pp" (Megatron's default) consecutive ranks are
// tensor-parallel peers, then context-, data-, and pipeline-parallel: rank = tp + t * (cp + c * (dp + d * pp)).
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/axes.h"

namespace trivet {

using AxisOrder = std::array<Axis, kAxes.size()>;
// Every order must name these axes. Any other axis that it leaves out follows its predecessor in the table.
inline constexpr std::array kNamedAxes = {Axis::tp, Axis::dp, Axis::pp};
inline constexpr AxisOrder kUsualOrder = [] {
  AxisOrder order{};
  for (size_t i = 0; i < order.size(); ++i) order[i] = kAxes[i].axis;
  return order;
}();
// Parses axis names separated by '-': tp, dp and pp once each, others at most once. Empty if the text is invalid.
std::optional<AxisOrder> parse_axis_order(std::string_view text);
std::string to_text(const AxisOrder& order, bool whole = false);  // not whole: without the axes that may be left out

struct MeshPosition : PerAxis<int> {
  MeshPosition(Entries entries = {}) : PerAxis(0) { set(entries); }  // 0 on the other axes
};

struct MeshShape : PerAxis<int> {
  MeshShape(Entries sizes = {}, const AxisOrder& axis_order = kUsualOrder)  // 1 on the other axes
      : PerAxis(1), order(axis_order) {
    set(sizes);
  }
  int size(AxisSet axes) const;  // of a group over these axes
  int world() const { return size(kGradientAxes) * size(kModelAxes); }

  AxisOrder order;
};

MeshPosition position_of(int rank, const MeshShape& shape);
int rank_of(const MeshPosition& position, const MeshShape& shape);
// Human-readable, with the axes that every order names and those with several ranks: "rank 3 (tp 1, pp 0, dp 1)", and
// "tensor 2 x pipeline 1 x data 2".
std::string rank_name(int rank, const MeshShape& shape);
std::string sizes_text(const MeshShape& shape);
// The ranks that differ from this position in `axes` only, ascending; and this rank's index among them.
std::vector<int> group_members(const MeshPosition& at, const MeshShape& shape, AxisSet axes);
int place_in_group(const MeshPosition& at, const MeshShape& shape, AxisSet axes);

}  // namespace trivet
