// What a step of AdamW multiplies with, worked out once in double: the same for every back end.
#pragma once

#include <cmath>

#include "kernels/ops.h"

namespace trivet {

struct AdamWConstants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
  float step_size;        // learning rate / (1 - beta1^step)
  float root_correction;  // 1 / sqrt(1 - beta2^step)
  float decay;            // learning rate * weight decay
};

inline AdamWConstants constants_of(const AdamW& how) {
  const double step = static_cast<double>(how.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(how.beta1), step);
  const double correction2 = 1.0 - std::pow(static_cast<double>(how.beta2), step);
  return {.beta1 = how.beta1,
          .one_minus_beta1 = static_cast<float>(1.0 - static_cast<double>(how.beta1)),
          .beta2 = how.beta2,
          .one_minus_beta2 = static_cast<float>(1.0 - static_cast<double>(how.beta2)),
          .eps = how.eps,
          .step_size = static_cast<float>(how.learning_rate / correction1),
          .root_correction = static_cast<float>(1.0 / std::sqrt(correction2)),
          .decay = static_cast<float>(static_cast<double>(how.learning_rate) * how.weight_decay)};
}

}  // namespace trivet
