#include "engine/model/layernorm.h"

namespace trivet {

LayerNorm::LayerNorm(ParamList& params, const std::string& name, const GptShape& shape)
    : gamma(params.declare({.name = name + ".weight",
                            .global_shape = {shape.hidden},
                            .init = {Init::ones},
                            .weight_decay = shape.decay_norms_and_biases,
                            .sum_over_tensor_group = shape.sequence_parallel})),
      beta(params.declare({.name = name + ".bias",
                           .global_shape = {shape.hidden},
                           .weight_decay = shape.decay_norms_and_biases,
                           .sum_over_tensor_group = shape.sequence_parallel})),
      eps(static_cast<float>(shape.norm_epsilon)) {}

void LayerNorm::forward(Context& ctx, Tensor x, Tensor y, Tensor mean, Tensor rstd) const {
  ctx.ops.layernorm_forward(x, gamma.weight, beta.weight, eps, y, mean, rstd, ctx.compute);
}

void LayerNorm::backward(Context& ctx, Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor residual,
                         Tensor dx) const {
  ctx.ops.layernorm_backward(dy, x, gamma.weight, mean, rstd, residual, dx, gamma.grad, beta.grad, ctx.compute);
}

}  // namespace trivet
