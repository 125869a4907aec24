// The axes of the mesh of ranks, in one table: one row per axis.
//
// A parameter's placement on the axes (ParamList resolves it) decides over which ranks its gradient is summed. A set of
// axes defines a group: the ranks that differ in those axes only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "kernels/base/trace.h"

namespace trivet {

enum class Axis : uint8_t { tp, cp, dp, pp };

// The placement of a parameter on an axis.
struct Placement {
  enum Kind : uint8_t {
    replicated,   // the ranks hold the same weight and compute the same gradient
    partial,      // they hold the same weight; each computes a term of the gradient, which is the sum of the terms
    partitioned,  // each holds a slice along `dim`; -1: one rank of the axis holds the whole weight
  } kind = replicated;
  int dim = -1;
};
inline constexpr Placement kReplicated{Placement::replicated}, kPartial{Placement::partial};
constexpr Placement partitioned(int dim = -1) { return {Placement::partitioned, dim}; }

struct AxisInfo {
  Axis axis;
  std::string_view name;  // as written in an axis order ("tp-cp-dp-pp")
  const char* group;      // name of its groups, in the trace and in errors
  Category category;      // of its communication
  Placement usual;        // unless a parameter's layer declares another
};
inline constexpr std::array kAxes{
    AxisInfo{Axis::tp, "tp", "tensor", comm_of("tensor"), kReplicated},
    AxisInfo{Axis::cp, "cp", "context", comm_of("context"), kPartial},
    AxisInfo{Axis::dp, "dp", "data", comm_of("data"), kPartial},
    AxisInfo{Axis::pp, "pp", "pipeline", comm_of("pipeline"), partitioned()},
};

class AxisSet {
 public:
  constexpr AxisSet(std::initializer_list<Axis> axes = {}) {
    for (const Axis axis : axes) add(axis);
  }
  constexpr void add(Axis axis) { bits_ |= bit(axis); }
  constexpr bool has(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr auto operator<=>(const AxisSet&) const = default;

 private:
  static constexpr uint32_t bit(Axis axis) { return 1u << static_cast<int>(axis); }
  uint32_t bits_ = 0;
};

// gradients = true: the axes on which every parameter is partial; whole buckets are summed over all of them together,
// and their ranks may shard the training state (ZeRO). false: the other axes, whose ranks together hold one model.
constexpr AxisSet axes_of(bool gradients) {
  AxisSet axes;
  for (const AxisInfo& row : kAxes)
    if ((row.usual.kind == Placement::partial) == gradients) axes.add(row.axis);
  return axes;
}
inline constexpr AxisSet kGradientAxes = axes_of(true), kModelAxes = axes_of(false);

template <class T>
class PerAxis {
 public:
  using Entries = std::initializer_list<std::pair<Axis, T>>;
  T& operator[](Axis axis) { return values_[static_cast<size_t>(axis)]; }
  const T& operator[](Axis axis) const { return values_[static_cast<size_t>(axis)]; }
  bool operator==(const PerAxis&) const = default;

 protected:
  explicit PerAxis(const T& others = {}) { values_.fill(others); }
  void set(Entries entries) {
    for (const auto& [axis, value] : entries) (*this)[axis] = value;
  }

 private:
  std::array<T, kAxes.size()> values_;
};

struct Placements : PerAxis<Placement> {
  Placements(Entries entries = {}) {
    for (const AxisInfo& row : kAxes) (*this)[row.axis] = row.usual;
    set(entries);
  }
};

}  // namespace trivet
