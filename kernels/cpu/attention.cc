#include "kernels/cpu/attention_backward.h"
#include "kernels/cpu/attention_forward.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/panels_amx.h"
#include "kernels/cpu/parallel_for.h"

namespace trivet {
namespace {

AttentionSizes sizes_of(const Tensor& qkv, int64_t heads) {
  return {qkv.shape[0], qkv.shape[1], heads, qkv.shape[2] / (3 * heads)};
}

// f.template operator()<Panels, T>() for the panels that suit tensors of this type on this machine.
template <class F>
void with_panels(DType dtype, const F& f) {
  if (dtype == DType::f32) f.template operator()<F32Panels, float>();
  else if (amx_available()) f.template operator()<AmxPanels, bf16>();
  else f.template operator()<F32Panels, bf16>();
}

// In how many shares a head's queries are dealt out, so that all threads have about as much to do. Every share packs
// the head's keys and values for itself.
int64_t shares_of_head(const AttentionSizes& z, int threads) {
  const int64_t heads = z.b * z.heads;
  if (heads % threads == 0 || heads >= 8 * threads) return 1;
  return std::min(z.panels(), (8 * threads + heads - 1) / heads);
}

}  // namespace

void CpuOps::compute(const op::AttentionForward& op) {
  const AttentionSizes z = sizes_of(op.qkv, op.heads);
  with_panels(op.qkv.dtype, [&]<class Panels, class T>() {
    using Forward = AttentionForward<Panels, T>;
    const int64_t bytes = Forward::workspace_bytes(z), shares = shares_of_head(z, threads_);
    const Workspaces::Lease workspace = workspaces_.lease(threads_ * bytes);
    parallel_for(threads_, z.b * z.heads * shares, 1, [&](Range tasks, int part) {
      [[maybe_unused]] const typename Panels::Session session;
      Forward forward(z, workspace.data() + part * bytes);
      for (int64_t task = tasks.begin; task < tasks.end; ++task) {
        const int64_t batch = task / shares / z.heads, head = task / shares % z.heads;
        forward.run(head_view<const T>(op.qkv.as<T>(), z, 3 * z.d, batch, head),
                    head_view(op.out.as<T>(), z, z.d, batch, head), op.lse.as<float>() + (batch * z.heads + head) * z.s,
                    {op.dropout, batch, head}, task % shares, shares);
      }
    });
  });
}

void CpuOps::compute(const op::AttentionBackward& op) {
  const AttentionSizes z = sizes_of(op.qkv, op.heads);
  with_panels(op.qkv.dtype, [&]<class Panels, class T>() {
    using Backward = AttentionBackward<Panels, T>;
    const int64_t bytes = Backward::workspace_bytes(z);
    const Workspaces::Lease workspace = workspaces_.lease(threads_ * bytes);
    parallel_for(threads_, z.b * z.heads, 1, [&](Range tasks, int part) {
      [[maybe_unused]] const typename Panels::Session session;
      Backward backward(z, workspace.data() + part * bytes);
      for (int64_t task = tasks.begin; task < tasks.end; ++task) {
        const int64_t batch = task / z.heads, head = task % z.heads;
        backward.run(head_view<const T>(op.dout.as<T>(), z, z.d, batch, head),
                     head_view<const T>(op.qkv.as<T>(), z, 3 * z.d, batch, head),
                     head_view<const T>(op.out.as<T>(), z, z.d, batch, head),
                     op.lse.as<float>() + (batch * z.heads + head) * z.s,
                     head_view(op.dqkv.as<T>(), z, 3 * z.d, batch, head), {op.dropout, batch, head});
      }
    });
  });
}

}  // namespace trivet
