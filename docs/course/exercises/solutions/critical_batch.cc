#include "docs/course/exercises/critical_batch.h"

namespace trivet::exercise {

BatchLaw critical_batch(const std::vector<BatchRun>& runs) {
  double uu = 0, uv = 0, vv = 0, u_sum = 0, v_sum = 0;
  for (const auto& [batch, steps] : runs) {
    const double u = 1 / steps, v = 1 / (batch * steps);
    uu += u * u, uv += u * v, vv += v * v;
    u_sum += u, v_sum += v;
  }
  const double determinant = uu * vv - uv * uv;
  const double a = (u_sum * vv - v_sum * uv) / determinant, b = (v_sum * uu - u_sum * uv) / determinant;
  return {a, b / a};
}

}  // namespace trivet::exercise
