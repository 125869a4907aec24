// The positions of ranks in the grid of tensor (tp), context (cp), data (dp) and pipeline (pp) parallel ranks, and
// their groups: arithmetic without communication. axes.h has the table of axes.
//
// order: the axes from the innermost to the outermost. In "tp-dp-pp" (Megatron's default) consecutive ranks are tensor-
// parallel peers, then data-, then pipeline-parallel: rank = tp + t * (dp + d * pp).
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "parallel/axes.h"

namespace trivet {

using AxisOrder = std::array<Axis, kAxes.size()>;
// Names of the table separated by '-': tp, dp and pp once each, others at most once; those left out are outermost.
// Empty where the text is invalid.
std::optional<AxisOrder> parse_axis_order(std::string_view text);

struct MeshPosition : PerAxis<int> {
  MeshPosition(Entries entries = {}) : PerAxis(0) { set(entries); }  // 0 on the others
};

struct MeshShape : PerAxis<int> {
  MeshShape(Entries sizes = {}, std::string_view order_text = "tp-dp-pp");  // 1 on the others
  int size(AxisSet axes) const;                                             // of a group
  int world() const { return size(kGradientAxes) * size(kModelAxes); }

  AxisOrder order;
};

MeshPosition position_of(int rank, const MeshShape& shape);
int rank_of(const MeshPosition& position, const MeshShape& shape);
// The ranks that differ from this position in `axes` only, ascending; and the index of this one among them.
std::vector<int> group_members(const MeshPosition& at, const MeshShape& shape, AxisSet axes);
int place_in_group(const MeshPosition& at, const MeshShape& shape, AxisSet axes);

}  // namespace trivet
