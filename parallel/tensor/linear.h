// Linear layers partitioned over the tensor-parallel group (Shoeybi et al. 2019, section 3), with sequence parallelism
// (Korthikanti et al. 2022, section 4.2).
//
// Outside a pair of column and row layers every tensor rank holds x for the whole sequence, [s, b, h]; under sequence
// parallelism it holds its own slice of positions, [s/t, b, h]. "s*" below is s or s/t, accordingly.
//
//   column: x [s*, b, in]   -> y [s, b, out/t]    weight split by rows;    forward gathers x,  backward reduces dx
//   row:    x [s, b, in/t]  -> y [s*, b, out]     weight split by columns; forward reduces y,  backward gathers dy
//
// "Gathers" is an all-gather under sequence parallelism and nothing otherwise; "reduces" is a reduce-scatter or an
// all-reduce. Shoeybi et al. call these conjugates f (column: identity forward, all-reduce backward) and g (row:
// all-reduce forward, identity backward), as this file does. Under sequence parallelism, Korthikanti et al. write g for
// what replaces f, and g-bar for what replaces g. The steps, numbered as in the .cc:
//
//   column   1. gather x   2. y = x W^T, row by row as x arrives
//            3. dx = dy W, a partial sum   4. reduce it (f)   5. dW += dy^T x; gathers x again: only a slice is saved
//   row      1. y = x W^T, a partial sum   2. reduce it (g)
//            3. gather dy  4. dx = dy W    5. dW += dy^T x, which gathers dy again if it runs later
//
// The previous layer waits only for steps 3 and 4 of the backward pass; a schedule may run step 5 later.
// Weights are [out, in]; y = x W^T.
#pragma once

#include <string>

#include "parallel/context.h"
#include "parallel/param.h"
#include "parallel/tensor/overlap.h"
#include "parallel/tensor/quantise.h"

namespace trivet {

enum class Bias : uint8_t { none, kept, decayed };  // decayed: by the optimizer

// What the layers have in common.
class ParallelLinear {
 public:
  const Param& weight() const { return weight_; }
  Tensor bias() const { return bias_ ? bias_->weight : Tensor{}; }

 protected:
  // The weight is [out, in], partitioned along `dim`; a bias along the same dimension or, if it has none, not at all.
  ParallelLinear(ParamList& params, const std::string& name, const Shape& out, int64_t in, int dim, Init init,
                 Bias bias, TensorOverlap overlap, const Fp8Mode& fp8);

  const Operands operands_;
  Param& weight_;      // column: [out/t, in], or [2, columns/t, in]; row: [out, in/t]
  Param* const bias_;  // column: [out/t], or [2, columns/t]; row: [out], on every tensor rank; null: none
  const TensorOverlap overlap_;
};

class ColumnParallelLinear : public ParallelLinear {
 public:
  // out: {columns of y}, or {2, columns} for two layers side by side, each partitioned separately: a rank's y holds its
  // columns of the first, then those of the second. overlap: how communication under sequence parallelism overlaps;
  // modes other than none need a Context with a tensor_comm_stream.
  ColumnParallelLinear(ParamList& params, const std::string& name, int64_t in, const Shape& out, Init init, Bias bias,
                       TensorOverlap overlap = TensorOverlap::none, const Fp8Mode& fp8 = {})
      : ParallelLinear(params, name, out, in, out.rank - 1, init, bias, overlap, fp8) {}

  // y = x W^T + bias; or, with pre_activation (y's shape): pre_activation = x W^T + bias, y = act(pre_activation).
  // act: must not be gated.
  void forward(Context& ctx, const Operand<Place::residual>& x, Hidden y, Hidden pre_activation = {},
               Activation act = {}) const;
  // Both halves below, the second through the context's weight-gradient queue; x and dy must live until it has run.
  void backward(Context& ctx, const Operand<Place::residual>& x, Hidden dy, Residual dx) const;

 private:
  using Input = Operand<Place::residual>;
  using Gradient = Operand<Place::hidden>;
  // d: dy as the dx GEMM reads it, quantised or not. Returns dy as the weight-gradient GEMM reads it.
  Gradient for_weight(Context& ctx, Hidden dy, const Gradient& d, Scratch::Frame& frame) const;
  void backward_in_bulk(Context& ctx, const Input& x, Hidden dy, const Gradient& d, Residual dx) const;
  void backward_input(Context& ctx, const Gradient& d, Partial dx) const;  // dx = dy W
  void backward_weight(Context& ctx, const Input& x, Hidden dy,
                       const Gradient& d) const;  // dW += dy^T x, dbias += sum of dy
};

// The bias is added once, after the reduction.
class RowParallelLinear : public ParallelLinear {
 public:
  RowParallelLinear(ParamList& params, const std::string& name, int64_t in, int64_t out, Init init, Bias bias,
                    TensorOverlap overlap = TensorOverlap::none, const Fp8Mode& fp8 = {})
      : ParallelLinear(params, name, {out}, in, 1, init, bias, overlap, fp8) {}

  void forward(Context& ctx, const Operand<Place::hidden>& x, Residual y) const;  // y = x W^T
  // out = residual + dropout(x W^T + bias). `out` must not be `residual`.
  void forward_onto(Context& ctx, const Operand<Place::hidden>& x, Residual residual, const Dropout& dropout,
                    Residual out) const;
  // Like ColumnParallelLinear::backward. dy: [s*, b, out]. pre_activation (null: none) has x's shape, and x is
  // act(pre_activation): dx becomes the gradient of pre_activation instead of x's.
  void backward(Context& ctx, const Operand<Place::hidden>& x, Residual dy, Hidden dx, Hidden pre_activation = {},
                Activation act = {}) const;
  // dy_whole: the gradient of y at all positions (gather_sequence). dW += dy^T x, dbias += sum of dy.
  void backward_weight(Context& ctx, const Operand<Place::hidden>& x, const Operand<Place::whole>& dy_whole,
                       Residual dy) const;
};

}  // namespace trivet
