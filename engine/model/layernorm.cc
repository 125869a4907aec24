#include "engine/model/layernorm.h"

namespace trivet {

LayerNorm::LayerNorm(ParamList& params, const std::string& name, const GptShape& shape)
    : gamma(params.declare({.name = name + ".weight",
                            .global_shape = {shape.hidden},
                            .init = {Init::ones},
                            .weight_decay = shape.decay_norms_and_biases,
                            .used_on = Place::residual})),
      beta(params.declare({.name = name + ".bias",
                           .global_shape = {shape.hidden},
                           .weight_decay = shape.decay_norms_and_biases,
                           .used_on = Place::residual})),
      eps(static_cast<float>(shape.norm_epsilon)) {}

void LayerNorm::forward(Context& ctx, Residual x, Residual y, Tensor mean, Tensor rstd) const {
  ctx.run(op::LayernormForward{
      .x = x, .gamma = gamma.weight, .beta = beta.weight, .eps = eps, .y = y, .mean = mean, .rstd = rstd});
}

void LayerNorm::backward(Context& ctx, Residual dy, Residual x, Tensor mean, Tensor rstd, Residual residual,
                         Residual dx) const {
  ctx.run(op::LayernormBackward{.dy = dy,
                                .x = x,
                                .gamma = gamma.weight,
                                .mean = mean,
                                .rstd = rstd,
                                .residual = residual,
                                .dx = dx,
                                .dgamma = gamma.grad,
                                .dbeta = beta.grad});
}

}  // namespace trivet
