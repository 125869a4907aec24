// Layer norm with two replicated parameters, or RMSNorm with the first of them. Under sequence parallelism each
// tensor-parallel rank normalises its own positions, and the parameters' gradients are summed over the group at the end
// of the step.
#pragma once

#include <string>

#include "engine/model/shape.h"
#include "parallel/context.h"
#include "parallel/param.h"

namespace trivet {

struct LayerNorm {
  LayerNorm(ParamList& params, const std::string& name, const GptShape& shape);
  Param& gamma;       // [h]
  Param* const beta;  // [h]; null: RMSNorm, which uses no mean
  float eps;

  void forward(Context& ctx, Residual x, Residual y, Tensor mean, Tensor rstd) const;
  // dx = residual (optional, may be dx itself) + the gradient of x.
  void backward(Context& ctx, Residual dy, Residual x, Tensor mean, Tensor rstd, Residual residual, Residual dx) const;
};

inline LayerNorm::LayerNorm(ParamList& params, const std::string& name, const GptShape& shape)
    : gamma(params.declare({.name = name + ".weight",
                            .global_shape = {shape.hidden},
                            .init = {Init::ones},
                            .weight_decay = shape.decay_norms_and_biases,
                            .used_on = Place::residual})),
      beta(shape.norm == Norm::rmsnorm ? nullptr
                                       : &params.declare({.name = name + ".bias",
                                                          .global_shape = {shape.hidden},
                                                          .weight_decay = shape.decay_norms_and_biases,
                                                          .used_on = Place::residual})),
      eps(static_cast<float>(shape.norm_epsilon)) {}

inline void LayerNorm::forward(Context& ctx, Residual x, Residual y, Tensor mean, Tensor rstd) const {
  ctx.run(op::LayernormForward{.x = x,
                               .gamma = gamma.weight,
                               .beta = beta ? beta->weight : Tensor{},
                               .eps = eps,
                               .y = y,
                               .mean = beta ? mean : Tensor{},
                               .rstd = rstd});
}

inline void LayerNorm::backward(Context& ctx, Residual dy, Residual x, Tensor mean, Tensor rstd, Residual residual,
                                Residual dx) const {
  ctx.run(op::LayernormBackward{.dy = dy,
                                .x = x,
                                .gamma = gamma.weight,
                                .mean = beta ? mean : Tensor{},
                                .rstd = rstd,
                                .residual = residual,
                                .dx = dx,
                                .dgamma = gamma.grad,
                                .dbeta = beta ? beta->grad : Tensor{}});
}

}  // namespace trivet
