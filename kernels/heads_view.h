// HeadsView: where the heads of queries, keys or values lie in a tensor. Attention reads and writes nothing else, so
// every layout is a choice of strides:
//
//   one fused tensor    [s, b, kv_heads * (heads / kv_heads + 2) * d]: for each group its queries, then its key and its
//                       value, in Megatron's order. With kv_heads == heads: the query, key and value of each head.
//   separate tensors    [s, b, heads * d] for queries, [s, b, kv_heads * d] for keys and for values
//
// Heads are numbered by group: the query heads of a group share one head of keys and one of values (grouped-query
// attention, Ainslie et al. 2023), so query head h reads kv head h / members.
#pragma once

#include "kernels/op_fields.h"
#include "kernels/shapes.h"

namespace trivet {

// Sizes, and strides in elements. A head's columns are contiguous.
struct HeadsLayout {
  int64_t s = 0, b = 0, groups = 0, members = 0, d = 0;    // members: heads per group; 1 for keys and values
  int64_t position = 0, entry = 0, group = 0, member = 0;  // strides from one position, batch entry, … to the next

  TRIVET_HOST_DEVICE int64_t heads() const { return groups * members; }
  int64_t numel() const { return s * b * heads() * d; }
  // Column 0 of a head, counted from the view's first element.
  TRIVET_HOST_DEVICE int64_t at(int64_t p, int64_t e, int64_t head) const {
    return p * position + e * entry + head / members * group + head % members * member;
  }
  // The layout of one tensor [s, b, groups, group_width] in which a group has `members` heads side by side.
  static HeadsLayout in_groups(int64_t s, int64_t b, int64_t groups, int64_t members, int64_t d, int64_t group_width) {
    return {s, b, groups, members, d, b * groups * group_width, groups * group_width, group_width, d};
  }
  bool operator==(const HeadsLayout&) const = default;
};

// The rows of a tensor that an op works on: the heads of this view or, if there are none, the tensor's own rows.
struct HeadRows {
  int64_t first = 0;
  HeadsLayout layout{};

  bool any() const { return layout.d > 0; }
  HeadsLayout of(const Tensor& x) const {
    return any() ? layout : HeadsLayout::in_groups(x.rows(), 1, 1, 1, x.cols(), x.cols());
  }
};

// Memory: Tensor, or an op's argument (kernels/op_fields.h).
template <class Memory>
struct HeadsOf {
  Memory memory{};    // all heads lie in it
  int64_t first = 0;  // index in `memory` of column 0 of head 0 of batch entry 0 at position 0
  HeadsLayout layout{};

  void* data() const { return static_cast<std::byte*>(memory.data) + first * size_of(memory.dtype); }
  HeadRows rows() const { return {first, layout}; }
  template <class Other>
  operator HeadsOf<Other>() const {  // NOLINT: it is that view
    return {memory, first, layout};
  }
};
template <class Memory>
struct QkvOf {
  HeadsOf<Memory> q, k, v;
  template <class Other>
  operator QkvOf<Other>() const {  // NOLINT: they are those views
    return {q, k, v};
  }
};
using HeadsView = HeadsOf<Tensor>;
using QkvViews = QkvOf<Tensor>;

// Query heads per group. Throws Error if kv_heads does not divide heads.
inline int64_t group_members(int64_t heads, int64_t kv_heads) {
  if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0)
    fail("attention: " + std::to_string(heads) + " query heads, expected a multiple of the " +
         std::to_string(kv_heads) + " kv heads");
  return heads / kv_heads;
}

// qkv: [s, b, kv_heads * (heads / kv_heads + 2) * d], the fused tensor.
inline QkvViews qkv_views(const Tensor& qkv, int64_t heads, int64_t kv_heads) {
  const int64_t members = group_members(heads, kv_heads), units = kv_heads * (members + 2);
  if (qkv.shape.rank != 3 || qkv.shape[2] % units != 0)
    fail("attention: qkv is " + to_string(qkv.shape) + ", expected [s, b, " + std::to_string(units) + " * d] with " +
         std::to_string(heads) + " query heads and " + std::to_string(kv_heads) + " kv heads");
  const int64_t s = qkv.shape[0], b = qkv.shape[1], d = qkv.shape[2] / units;
  const auto part = [&](int64_t first, int64_t count) {
    return HeadsView{qkv, first * d, HeadsLayout::in_groups(s, b, kv_heads, count, d, (members + 2) * d)};
  };
  return {part(0, members), part(members, 1), part(members + 1, 1)};
}

// x: [s, b, heads * d], a tensor of queries, keys or values; for keys and values, heads == groups.
inline HeadsView heads_view(const Tensor& x, int64_t heads, int64_t groups) {
  const int64_t members = group_members(heads, groups);
  if (x.shape.rank != 3 || x.shape[2] % heads != 0)
    fail("attention: found " + to_string(x.shape) + ", expected [s, b, " + std::to_string(heads) + " * d]");
  const int64_t d = x.shape[2] / heads;
  return {x, 0, HeadsLayout::in_groups(x.shape[0], x.shape[1], groups, members, d, members * d)};
}

// `count` positions of a view, or the heads of `count` of its groups, from `first` on.
template <class Memory>
HeadsOf<Memory> positions_of(HeadsOf<Memory> view, int64_t first, int64_t count) {
  view.first += first * view.layout.position;
  view.layout.s = count;
  return view;
}
template <class Memory>
HeadsOf<Memory> groups_of(HeadsOf<Memory> view, int64_t first, int64_t count) {
  view.first += first * view.layout.group;
  view.layout.groups = count;
  return view;
}

// The last `count` positions of a view.
inline HeadsView last_positions(const HeadsView& view, int64_t count) {
  return positions_of(view, view.layout.s - count, count);
}

// Where an attention op's queries lie in `out` [positions, b, heads * d] and `lse` [b, heads, positions]: from
// first_position and first_head on. A size of 0 stands for the queries' own size: they then fill that dimension.
struct AttentionPart {
  int64_t first_position = 0, first_head = 0;
  int64_t positions = 0, heads = 0;

  int64_t positions_of(const HeadsLayout& q) const { return positions > 0 ? positions : q.s; }
  int64_t heads_of(const HeadsLayout& q) const { return heads > 0 ? heads : q.heads(); }
  // The queries' rows of out, or of a tensor shaped like it.
  template <class Memory>
  HeadsOf<Memory> rows(const Memory& x, const HeadsLayout& q) const {
    const int64_t all = heads_of(q);
    return {x,
            (first_position * q.b * all + first_head) * q.d,
            {q.s, q.b, q.groups, q.members, q.d, q.b * all * q.d, all * q.d, q.members * q.d, q.d}};
  }
  // The index in lse of the first query of a head of a batch entry.
  TRIVET_HOST_DEVICE int64_t lse_at(const HeadsLayout& q, int64_t entry, int64_t head) const {
    return (entry * (heads > 0 ? heads : q.heads()) + first_head + head) * (positions > 0 ? positions : q.s) +
           first_position;
  }
};

// Checks that the view is not null, is of this type, and lies within its memory.
template <class Memory>
void expect_heads(const Expect& expect, const char* argument, const HeadsOf<Memory>& x, DType dtype) {
  const auto& [s, b, groups, members, d, position, entry, group, member] = x.layout;
  if (!x.memory || x.memory.dtype != dtype) [[unlikely]]
    expect.mismatch(argument, x.memory, name_of(dtype));
  if (s < 0 || b < 0 || groups < 1 || members < 1 || d < 1 || x.first < 0 || position < 0 || entry < 0 || group < 0 ||
      member < 0) [[unlikely]]
    fail(std::string(expect.op) + ": " + argument + " has a negative size or stride, or no heads");
  const int64_t end = x.first + x.layout.at(s - 1, b - 1, groups * members - 1) + d;
  if (s * b > 0 && end > x.memory.numel()) [[unlikely]]
    expect.mismatch(argument, x.memory, "at least the " + std::to_string(end) + " elements that its strides reach");
}

inline std::string describe_heads(const HeadsLayout& z, int64_t members) {
  return to_string(Shape{z.s, z.b, z.groups * members, z.d}) + " in " + std::to_string(z.groups) + " groups";
}

// Checks that the sizes are those of `like`, but with `members` heads per group.
inline void expect_sizes_like(const Expect& expect, const char* argument, const HeadsLayout& z, const HeadsLayout& like,
                              int64_t members) {
  if (z.s != like.s || z.b != like.b || z.groups != like.groups || z.members != members || z.d != like.d) [[unlikely]]
    expect.fail(argument, describe_heads(z, z.members), describe_heads(like, members));
}
// Checks the type as well.
template <class Memory>
void expect_heads_like(const Expect& expect, const char* argument, const HeadsOf<Memory>& x, const HeadsOf<In>& like,
                       int64_t members) {
  expect_heads(expect, argument, x, like.memory.dtype);
  expect_sizes_like(expect, argument, x.layout, like.layout, members);
}

}  // namespace trivet
