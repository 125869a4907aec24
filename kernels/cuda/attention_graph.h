// AttentionGraph: causal attention as a graph of small operations, the form that cuDNN expects: it recognises the whole
// and runs one fused kernel, which stores no tensor between two operations. The graph is plain data, so that it can be
// checked without a GPU and cuDNN: a test computes it, operation by operation.
//
// Every tensor has four sizes, [b, heads, rows, columns], and a stride for each, in elements. A size of 1 stands for as
// many as the other operand has; in a matmul y may have fewer heads, each for a group of x's.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace trivet {

struct GraphTensor {
  enum class Type { f32, bf16, i32, boolean };
  enum class Place {
    memory,   // the caller's
    between,  // the result of one operation and the operand of others
    number    // `value`, passed with each run
  };
  Place place = Place::between;
  Type type = Type::f32;
  std::array<int64_t, 4> size{}, stride{};
  float value = 0;
};

// out = op(x, y), each a tensor's index. Sums are kept in fp32.
//   matmul                   x y, of the matrices [rows, columns]
//   reshape                  x as it lies in memory, but in out's type, and with out's sizes and strides
//   row_index, column_index  of the element, whatever x is
//   at_least                 whether x >= y
//   select                   x where `condition`, else y
//   row_max, row_sum         over the columns
//   head_sum                 over the heads of each group: out has fewer
enum class GraphOp {
  matmul,
  reshape,
  copy,
  multiply,
  divide,
  add,
  subtract,
  exp,
  log,
  row_index,
  column_index,
  at_least,
  select,
  row_max,
  row_sum,
  head_sum
};
struct GraphStep {
  GraphOp op;
  int x = -1, y = -1, condition = -1;
  int out = -1;
};

// The tensors of both graphs that are memory, by their index: [b, heads, s, d], and lse and delta [b, heads, s, 1].
// Key, value and their gradients have a head a group. Query, key and value lie as the views of the shape: strides say
// so, and nothing is copied. Their gradients likewise. The others are workspace of the backward pass: delta, of each
// query the sum over columns of dout * out, in fp32; what dquery is added up in, in fp32, where that is by atomics; and
// in bf16 each query head's share of dkey and dvalue, where a group has several.
namespace attention_tensor {
enum Index : int {
  query,
  key,
  value,
  out,
  lse,
  dout,
  dquery,
  dkey,
  dvalue,
  delta,
  dquery_sum,
  dkey_share,
  dvalue_share,
  count
};
}  // namespace attention_tensor

struct AttentionGraph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphStep> steps;
};

// A GraphTensor has one stride from head to head, which a layout must have for a graph.
bool heads_are_equidistant(const HeadsLayout& z);

// out = softmax(scale * query key^T, masked) value; lse = log of the sum of exp of the masked scores.
AttentionGraph attention_forward_graph(const AttentionShape& shape);
// dquery, dkey, dvalue. deterministic: the gradient of the scores is stored, [b, heads, s, s] in bf16, so that dquery
// is a matmul with a fixed order of its sums; else blocks of keys add to dquery_sum by atomics, in any order.
AttentionGraph attention_backward_graph(const AttentionShape& shape, bool deterministic);

}  // namespace trivet
