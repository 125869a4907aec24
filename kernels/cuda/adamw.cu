// AdamW, fused with the rounding of the new weight into the model's: one pass over all of the optimizer's memory, 30
// bytes an element, which is all it costs.
#include "kernels/adamw_constants.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/op_checks.h"

namespace trivet {
namespace {

// ---- kernels

// A thread has one pack. Shards are cut at any element, so each of the arrays may start at any alignment.
__global__ void __launch_bounds__(256)
    adamw_kernel(int64_t n, AdamWConstants c, const float* grad_scale, const float* proceed, const float* grad,
                 float* weight, float* m, float* v, __nv_bfloat16* model_weight, bool vectors, bool model_vectors) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
  if (i >= n || (proceed && *proceed == 0)) return;
  const float scale = grad_scale[0];
  const Pack gradient = load_pack(grad, i, n, vectors);
  Pack w = load_pack(weight, i, n, vectors), first = load_pack(m, i, n, vectors), second = load_pack(v, i, n, vectors);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    const float g = gradient.v[k] * scale;
    first.v[k] = c.beta1 * first.v[k] + c.one_minus_beta1 * g;
    second.v[k] = c.beta2 * second.v[k] + c.one_minus_beta2 * (g * g);
    const float root = sqrtf(second.v[k]) * c.root_correction + c.eps;
    w.v[k] -= c.step_size * first.v[k] / root + c.decay * w.v[k];
  }
  store_pack(m, i, n, vectors, first);
  store_pack(v, i, n, vectors, second);
  store_pack(weight, i, n, vectors, w);
  if (model_weight) store_pack(model_weight, i, n, model_vectors, w);
}

}  // namespace

// ---- launchers

void CudaOps::adamw(Tensor weight, Tensor grad, Tensor m, Tensor v, Tensor model_weight, Tensor grad_scale,
                    Tensor proceed, const AdamW& how, Stream& stream) {
  constexpr const char* kOp = "adamw";
  shapes::check_adamw(weight, grad, m, v, model_weight, grad_scale, proceed, how);
  const int64_t n = weight.numel();
  if (n == 0) return;
  enqueue(stream, {kOp, Category::optimizer}, [&](cudaStream_t raw_stream) {
    adamw_kernel<<<blocks(ceil_div(n, 256 * kPack), kOp), 256, 0, raw_stream>>>(
        n, constants_of(how), grad_scale.as<float>(), elements<float>(proceed), grad.as<float>(), weight.as<float>(),
        m.as<float>(), v.as<float>(), elements<bf16>(model_weight), aligned(weight, grad, m, v), aligned(model_weight));
  });
}

}  // namespace trivet
