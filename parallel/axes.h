// The axes of the mesh of ranks, in one table: a row more is an axis more.
//
// A parameter says how it stands on each axis, and from that alone follows what is summed over which ranks. Groups are
// made of sets of axes: the ranks that differ in those axes only.
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

// How a parameter stands on an axis.
struct Standing {
  enum Kind : uint8_t {
    replicated,   // the ranks hold the same weight and make the same gradient
    partial,      // they hold the same weight, and each makes a term of the gradient: a sum over them
    partitioned,  // each holds a part along `dim`; -1: or the whole, and the others do not
  } kind = replicated;
  int dim = -1;
};
inline constexpr Standing kReplicated{Standing::replicated}, kPartial{Standing::partial};
constexpr Standing partitioned(int dim = -1) { return {Standing::partitioned, dim}; }

struct AxisInfo {
  Axis axis;
  std::string_view name;  // in an order of axes, and of positions
  const char* group;      // of its groups, in the trace and in errors
  Category category;      // of its communication
  Standing usual;         // of a parameter whose layer says nothing else
};
inline constexpr std::array kAxes{
    AxisInfo{Axis::tp, "tp", "tensor", comm_of("tensor"), kReplicated},
    AxisInfo{Axis::cp, "cp", "context", comm_of("data"), kPartial},
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

// The axes on which every parameter is partial, so that the sum of whole buckets is over all of them at once and their
// ranks may share what they keep (ZeRO); and the others, which together hold one model.
constexpr AxisSet axes_of(bool gradients) {
  AxisSet axes;
  for (const AxisInfo& row : kAxes)
    if ((row.usual.kind == Standing::partial) == gradients) axes.add(row.axis);
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

struct Standings : PerAxis<Standing> {
  Standings(Entries entries = {}) {
    for (const AxisInfo& row : kAxes) (*this)[row.axis] = row.usual;
    set(entries);
  }
};

}  // namespace trivet
