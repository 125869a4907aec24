// Causal attention over a sequence that the ranks of a context group share (cut.h).
//
//   p2p         Liu, Zaharia, Abbeel 2023, "Ring Attention": the ranks' keys and values travel round the group, and
//               the results of the hops are merged by their log-sum-exps, in fp32. In the backward pass their gradients
//               travel too, as fp32 sums: they begin at the rank after the owner and come home after a last hop, while
//               the first half of the rank's queries meets its own keys, kept for that. A timeline of rank
//               2 of 4; kv i are the keys and values of rank i, dkv i the sum of others' gradients of them so far:
//
//                 forward   compute   kv2          | kv1          | kv0          | kv3
//                           wire      2 → 3, get 1 | 1 → 3, get 0 | 0 → 3, get 3 |
//                 backward  compute   kv2, last ½  | kv1          | kv0                | kv3          | kv2, first ½
//                           wire      2 → 3, get 1 | 1 → 3, get 0 | dkv1, 0 → 3, get 3 | dkv0         | dkv3
//
//   all_gather  (Llama 3): keys and values of all ranks are gathered first, their gradients reduce-scattered after, a
//               few kv heads at a time: the next ones are on the wire while these are computed. The first halves of the
//               ranks' rows come in rank order and the last ones in reverse, so that all lie in the order of positions.
//
// Sums are in a fixed order, so that two runs agree bit for bit, and overlap changes nothing.
#pragma once

#include <array>

#include "parallel/comm_streams.h"
#include "parallel/context.h"
#include "parallel/context/cut.h"

namespace trivet {

class ContextGroup {
 public:
  // Collective over on.group, the ranks of the sequence. overlap: communication has a stream of its own.
  ContextGroup(const CommStreamSite& on, const ContextCut& cut, CpCommType type, bool overlap);

  const ContextCut& cut() const { return cut_; }
  CpCommType type() const { return type_; }

  // Each runs after compute's work so far, while compute continues; wait(mark) makes compute wait for the last one with
  // this mark.
  static constexpr int kMarks = 4;
  void pass_on(Tensor mine, Tensor of_previous, int mark);  // round the ring; of equal sizes on all ranks
  void gather(Tensor whole, int mark);  // [s, …] in the order of positions, in which this rank's are there
  void reduce(Tensor terms, int mark);  // in the same order: this rank's become the sums over the group
  void wait(int mark) { compute_.wait(*marks_[static_cast<size_t>(mark)]); }

 private:
  // Both halves of the sequence: f(part of this rank, half, group).
  template <class F>
  void for_halves(Tensor whole, int mark, const F& f);

  const ContextCut cut_;
  const CpCommType type_;
  Stream& compute_;
  CommStreams comm_streams_;
  std::unique_ptr<Communicator> reversed_;
  std::array<std::unique_ptr<Event>, kMarks> marks_;
};

// As op::AttentionForward and op::AttentionBackward, causal: of all positions of a sequence, of which the rank has
// those of ctx.context's cut; without one, of its own. dropout: of this rank's queries; its keys are all. starts:
// [s, b] int32 of this rank's positions, where each one's document begins (DocumentStarts); null: a sequence is one.
void attention_forward(Context& ctx, const QkvViews& heads, Tensor out, Tensor lse, const Dropout& dropout,
                       Tensor starts = {});
void attention_backward(Context& ctx, Tensor dout, const QkvViews& heads, Tensor out, Tensor lse, const QkvViews& dqkv,
                        const Dropout& dropout, Tensor starts = {});

}  // namespace trivet
