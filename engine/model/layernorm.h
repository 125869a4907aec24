// The layer norm of a transformer: two replicated parameters. Under sequence parallelism each tensor rank normalises
// its own positions, and the parameters' gradients are summed over the group at the end of the step.
#pragma once

#include <string>

#include "engine/model/shape.h"
#include "parallel/context.h"
#include "parallel/param.h"

namespace trivet {

struct LayerNorm {
  LayerNorm(ParamList& params, const std::string& name, const GptShape& shape);
  Param& gamma;  // [h]
  Param& beta;   // [h]
  float eps;

  void forward(Context& ctx, Residual x, Residual y, Tensor mean, Tensor rstd) const;
  // dx = residual (optional, may be dx itself) + the gradient of x.
  void backward(Context& ctx, Residual dy, Residual x, Tensor mean, Tensor rstd, Residual residual, Residual dx) const;
};

}  // namespace trivet
