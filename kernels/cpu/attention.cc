#include "kernels/cpu/attention_backward.h"
#include "kernels/cpu/attention_forward.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/panels_amx.h"
#include "kernels/cpu/parallel_for.h"

namespace trivet::TRIVET_CPU {
namespace {

template <class Op>
AttentionSizes sizes_of(const Op& op) {
  const HeadsLayout& q = op.qkv.q.layout;
  const int64_t keys = op.qkv.k.layout.s;
  return {q.s, keys, q.b, q.groups, q.members, q.d, op.causal ? keys - q.s : keys};
}

// The number of shares into which a head's queries are split, so that all threads have about the same amount of work.
// Every share packs the head's keys and values itself.
int64_t shares_of_head(const AttentionSizes& z, int threads) {
  const int64_t heads = z.b * z.heads();
  if (heads % threads == 0 || heads >= 8 * threads) return 1;
  return std::min(z.panels(), (8 * threads + heads - 1) / heads);
}

}  // namespace

void Kernels::compute(const op::AttentionForward& op) {
  const AttentionSizes z = sizes_of(op);
  const HeadsLayout& q = op.qkv.q.layout;
  const auto out = op.part.rows(op.out, q);
  with_panels(op.out.dtype, [&]<class Panels, class T>() {
    using Forward = HeadForward<Panels, T>;
    const int64_t bytes = Forward::workspace_bytes(z), shares = shares_of_head(z, threads_);
    const Workspaces::Lease workspace = workspaces_.lease(threads_ * bytes);
    parallel_for(threads_, z.b * z.heads() * shares, 1, [&](Range tasks, int part) {
      [[maybe_unused]] const typename Panels::Session session;
      Forward forward(z, workspace.get() + part * bytes);
      for (int64_t task = tasks.begin; task < tasks.end; ++task) {
        const int64_t row = task / shares, entry = row / z.heads(), head = row % z.heads(), group = head / z.members;
        forward.run(head_of<const T>(op.qkv.q, entry, head), head_of<const T>(op.qkv.k, entry, group),
                    head_of<const T>(op.qkv.v, entry, group), head_of<T>(out, entry, head),
                    op.lse.as<float>() + op.part.lse_at(q, entry, head), {op.dropout, entry, head},
                    {op.documents, entry, q.b}, task % shares, shares);
      }
    });
  });
}

void Kernels::compute(const op::AttentionBackward& op) {
  const AttentionSizes z = sizes_of(op);
  const HeadsLayout& q = op.qkv.q.layout;
  const auto dout = op.part.rows(op.dout, q), out = op.part.rows(op.out, q);
  with_panels(op.out.dtype, [&]<class Panels, class T>() {
    using Backward = GroupBackward<Panels, T>;
    const int64_t bytes = Backward::workspace_bytes(z);
    const Workspaces::Lease workspace = workspaces_.lease(threads_ * bytes);
    parallel_for(threads_, z.b * z.groups, 1, [&](Range tasks, int part) {
      [[maybe_unused]] const typename Panels::Session session;
      Backward backward(z, workspace.get() + part * bytes);
      for (int64_t row = tasks.begin * z.members; row < tasks.end * z.members; ++row) {
        const int64_t entry = row / z.heads(), head = row % z.heads(), group = head / z.members;
        backward.run({.member = head % z.members,
                      .dout = head_of<const T>(dout, entry, head),
                      .q = head_of<const T>(op.qkv.q, entry, head),
                      .k = head_of<const T>(op.qkv.k, entry, group),
                      .v = head_of<const T>(op.qkv.v, entry, group),
                      .out = head_of<const T>(out, entry, head),
                      .lse = op.lse.as<float>() + op.part.lse_at(q, entry, head),
                      .dq = head_of<T>(op.dqkv.q, entry, head),
                      .dk = head_of<T>(op.dqkv.k, entry, group),
                      .dv = head_of<T>(op.dqkv.v, entry, group)},
                     {op.dropout, entry, head}, {op.documents, entry, q.b});
      }
    });
  });
}

}  // namespace trivet::TRIVET_CPU
