// Layer norm with two replicated parameters, or RMSNorm with only the first. Tensor-parallel ranks normalise their own
// positions (under sequence parallelism) or their own heads; the parameter gradients are then summed over the group
// at the end of the step.
#pragma once

#include <string>
#include <type_traits>

#include "engine/model/shape.h"
#include "parallel/context.h"
#include "parallel/param.h"

namespace trivet {

// Rows: the rows that are normalised: positions with h columns each, or each head on this rank separately.
template <class Rows>
struct NormOf {
  static constexpr bool kHeads = std::is_same_v<Rows, HeadsView>;

  Param& gamma;       // [h], or [d]
  Param* const beta;  // same shape; null: RMSNorm, which uses no mean
  float eps;

  NormOf(ParamList& params, const std::string& name, const GptShape& shape)
      : gamma(params.declare(spec(name + ".weight", shape, {Init::ones}))),
        beta(shape.norm == Norm::rmsnorm ? nullptr : &params.declare(spec(name + ".bias", shape, {}))),
        eps(static_cast<float>(shape.norm_epsilon)) {}

  void forward(Context& ctx, const Rows& x, const Rows& y, Tensor mean, Tensor rstd) const {
    ctx.run(op::LayernormForward{.x = memory_of(x),
                                 .gamma = gamma.weight,
                                 .beta = beta ? beta->weight : Tensor{},
                                 .eps = eps,
                                 .y = memory_of(y),
                                 .mean = beta ? mean : Tensor{},
                                 .rstd = rstd,
                                 .rows = rows_of(x, y)});
  }
  // dx = residual (optional, may be dx itself) + the gradient of x. For heads, dx has the layout of dy.
  void backward(Context& ctx, const Rows& dy, const Rows& x, Tensor mean, Tensor rstd, const Rows& residual,
                const Rows& dx) const {
    ctx.run(op::LayernormBackward{.dy = memory_of(dy),
                                  .x = memory_of(x),
                                  .gamma = gamma.weight,
                                  .mean = beta ? mean : Tensor{},
                                  .rstd = rstd,
                                  .residual = memory_of(residual),
                                  .dx = memory_of(dx),
                                  .dgamma = gamma.grad,
                                  .dbeta = beta ? beta->grad : Tensor{},
                                  .rows = rows_of(x, dy)});
  }

 private:
  static ParamSpec spec(const std::string& name, const GptShape& shape, Init init) {
    return {.name = name,
            .global_shape = {kHeads ? shape.attention.head_width : shape.hidden},
            .init = init,
            .weight_decay = shape.decay_norms_and_biases,
            .used_on = kHeads ? Place::hidden : Place::residual};
  }
  static Tensor memory_of(const Rows& rows) {
    if constexpr (kHeads) return rows.memory;
    else return rows;
  }
  static op::NormRows rows_of(const Rows& x, const Rows& y) {
    if constexpr (kHeads) return {x.rows(), y.rows()};
    else return {};
  }
};
using LayerNorm = NormOf<Residual>;
using HeadNorm = NormOf<HeadsView>;

}  // namespace trivet
