#include "kernels/cuda/attention_graph.h"

#include <cmath>
#include <limits>
#include <utility>

namespace trivet {
namespace {

using Type = GraphTensor::Type;
using Place = GraphTensor::Place;
using Sizes = std::array<int64_t, 4>;

// Adds operations one by one; each returns the index of its result. The order of the operations of the mask and of the
// softmax is the one in which cuDNN knows them (its documentation, and NVIDIA's cudnn-frontend).
class Builder {
 public:
  explicit Builder(const AttentionShape& shape) : z_{shape.q.b, shape.q.heads(), shape.q.s, shape.q.d} {
    namespace t = attention_tensor;
    graph_.tensors.resize(t::count);
    const HeadsLayout* const layouts[] = {&shape.q, &shape.k, &shape.v};
    for (int i = 0; i < 3; ++i)
      for (const int first : {t::query, t::dquery}) graph_.tensors[first + i] = view(*layouts[i]);
    const Sizes size{z_.b, z_.heads, z_.s, z_.d};
    const Sizes of_out{z_.heads * z_.d, z_.d, z_.b * z_.heads * z_.d, 1};
    for (const int i : {t::out, t::dout}) graph_.tensors[i] = {Place::memory, Type::bf16, size, of_out};
    for (const int i : {t::lse, t::delta}) graph_.tensors[i] = {Place::memory, Type::f32, row_sizes(), row_strides()};
    graph_.tensors[t::dquery_sum] = {Place::memory, Type::f32, size, dense()};
    for (const int i : {t::dkey_share, t::dvalue_share}) graph_.tensors[i] = {Place::memory, Type::bf16, size, dense()};
  }

  // Declares a tensor of memory as the matrix [columns, rows]: the operand of a matmul that takes its transpose.
  void declare_transposed(int tensor) { swap_matrix(graph_.tensors[static_cast<size_t>(tensor)]); }

  int number(float value) { return add({Place::number, Type::f32, {1, 1, 1, 1}, {1, 1, 1, 1}, value}); }
  int scores(Type type = Type::f32) { return add({Place::between, type, score_sizes(), score_strides()}); }
  int row() { return add({Place::between, Type::f32, row_sizes(), row_strides()}); }
  int columns() { return add({Place::between, Type::f32, {z_.b, z_.heads, z_.s, z_.d}, dense()}); }

  int step(GraphOp op, int x, int y, int out) {
    graph_.steps.push_back({.op = op, .x = x, .y = y, .out = out});
    return out;
  }
  int on_scores(GraphOp op, int x, int y = -1, Type type = Type::f32) { return step(op, x, y, scores(type)); }

  // x, read as the transpose of each matrix, in bf16.
  int transposed(int x) {
    GraphTensor t = graph_.tensors[static_cast<size_t>(x)];
    t.place = Place::between;
    t.type = Type::bf16;
    swap_matrix(t);
    return step(GraphOp::reshape, x, -1, add(t));
  }

  // Scores of keys behind their query become -infinity.
  int causal(int x) {
    const int query = on_scores(GraphOp::row_index, x, -1, Type::i32);
    const int key = on_scores(GraphOp::column_index, x, -1, Type::i32);
    const int seen = on_scores(GraphOp::at_least, query, key, Type::boolean);
    const int out = scores(), never = number(-std::numeric_limits<float>::infinity());
    graph_.steps.push_back({.op = GraphOp::select, .x = x, .y = never, .condition = seen, .out = out});
    return out;
  }

  // to = x^T y: the gradient of keys or values. share: of each query head, where several add to one.
  void add_gradient(int x, int y, int share, int to) {
    const bool grouped = graph_.tensors[static_cast<size_t>(to)].size[1] != z_.heads;
    step(GraphOp::matmul, transposed(x), y, grouped ? share : to);
    if (grouped) step(GraphOp::head_sum, share, -1, to);
  }

  AttentionGraph take() { return std::move(graph_); }

 private:
  static GraphTensor view(const HeadsLayout& z) {
    check(heads_are_equidistant(z), "the heads of a GraphTensor have one stride");
    return {Place::memory,
            Type::bf16,
            {z.b, z.heads(), z.s, z.d},
            {z.entry, z.members == 1 ? z.group : z.member, z.position, 1}};
  }
  static void swap_matrix(GraphTensor& t) {
    std::swap(t.size[2], t.size[3]);
    std::swap(t.stride[2], t.stride[3]);
  }
  int add(const GraphTensor& t) {
    graph_.tensors.push_back(t);
    return static_cast<int>(graph_.tensors.size()) - 1;
  }
  Sizes row_sizes() const { return {z_.b, z_.heads, z_.s, 1}; }
  Sizes row_strides() const { return {z_.heads * z_.s, z_.s, 1, 1}; }
  Sizes score_sizes() const { return {z_.b, z_.heads, z_.s, z_.s}; }
  Sizes score_strides() const { return {z_.heads * z_.s * z_.s, z_.s * z_.s, z_.s, 1}; }

  Sizes dense() const { return {z_.heads * z_.s * z_.d, z_.s * z_.d, z_.d, 1}; }

  const struct { int64_t b, heads, s, d; } z_;
  AttentionGraph graph_;
};

float score_scale(const AttentionShape& shape) { return 1.0f / std::sqrt(static_cast<float>(shape.q.d)); }

}  // namespace

bool heads_are_equidistant(const HeadsLayout& z) {
  return z.groups == 1 || z.members == 1 || z.group == z.members * z.member;
}

AttentionGraph attention_forward_graph(const AttentionShape& shape) {
  namespace t = attention_tensor;
  Builder g(shape);
  g.declare_transposed(t::key);
  int x = g.on_scores(GraphOp::matmul, t::query, t::key);
  x = g.on_scores(GraphOp::multiply, x, g.number(score_scale(shape)));
  x = g.causal(x);
  const int largest = g.step(GraphOp::row_max, x, -1, g.row());
  const int e = g.on_scores(GraphOp::exp, g.on_scores(GraphOp::subtract, x, largest));
  const int sum = g.step(GraphOp::row_sum, e, -1, g.row());
  g.step(GraphOp::add, largest, g.step(GraphOp::log, sum, -1, g.row()), t::lse);
  g.step(GraphOp::matmul, g.on_scores(GraphOp::divide, e, sum, Type::bf16), t::value, t::out);
  return g.take();
}

AttentionGraph attention_backward_graph(const AttentionShape& shape, bool deterministic) {
  namespace t = attention_tensor;
  Builder g(shape);
  const int scale = g.number(score_scale(shape));
  // delta; the product with 1 is where the pattern has the inverse of dropout's scale
  const int sum = g.step(GraphOp::row_sum, g.step(GraphOp::multiply, t::dout, t::out, g.columns()), -1, g.row());
  g.step(GraphOp::multiply, sum, g.number(1), t::delta);
  // the probabilities again, and dvalue
  g.declare_transposed(t::key);
  int x = g.on_scores(GraphOp::multiply, g.on_scores(GraphOp::matmul, t::query, t::key), scale);
  x = g.causal(g.on_scores(GraphOp::subtract, x, t::lse));
  const int p = g.on_scores(GraphOp::exp, x);
  g.add_gradient(p, t::dout, t::dvalue_share, t::dvalue);
  // the gradient of the scores, and dkey
  g.declare_transposed(t::value);
  x = g.on_scores(GraphOp::subtract, g.on_scores(GraphOp::matmul, t::dout, t::value), t::delta);
  const int ds = g.on_scores(GraphOp::multiply, g.on_scores(GraphOp::multiply, x, p), scale);
  g.add_gradient(ds, t::query, t::dkey_share, t::dkey);
  // dquery
  const int key = g.transposed(t::key);
  if (deterministic) g.step(GraphOp::matmul, ds, key, t::dquery);
  else g.step(GraphOp::copy, g.step(GraphOp::matmul, ds, key, t::dquery_sum), -1, t::dquery);
  return g.take();
}

}  // namespace trivet
