// The options of an op::Matmul apart from its matrices, for tables of cases.
#pragma once

#include "kernels/ops.h"

namespace trivet::test {

struct MatmulOptions {
  bool transpose_a = false, transpose_b = false, accumulate = false;
  Tensor bias{}, pre_activation{}, activation_backward{}, bias_grad{}, residual{};

  op::Matmul of(Tensor a, Tensor b, Tensor c) const {
    return {a,         b,       c, transpose_a, transpose_b, accumulate, bias, pre_activation, activation_backward,
            bias_grad, residual};
  }
};

}  // namespace trivet::test
