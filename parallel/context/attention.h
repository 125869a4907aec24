// Causal attention over a sequence that the ranks of a context group share (cut.h).
//
//   p2p         Liu, Zaharia, Abbeel 2023, "Ring Attention": keys and values travel around the ring of ranks, and the
//               hops' results are merged by their log-sum-exps, in fp32. In the backward pass the gradients travel too,
//               as fp32 sums: they start at the rank after the owner and return to it in a final hop, which overlaps
//               the first half of the rank's queries on its own keys, deferred until then. Timeline of rank 2 of 4;
//               kv i: keys and values of rank i; dkv i: the sum so far of the other ranks' gradients of kv i:
//
//                 forward   compute   kv2          | kv1          | kv0          | kv3
//                           wire      2 → 3, get 1 | 1 → 3, get 0 | 0 → 3, get 3 |
//                 backward  compute   kv2, last ½  | kv1          | kv0                | kv3          | kv2, first ½
//                           wire      2 → 3, get 1 | 1 → 3, get 0 | dkv1, 0 → 3, get 3 | dkv0         | dkv3
//
//   all_gather  (Llama 3): the keys and values of all ranks are gathered first and their gradients reduce-scattered
//               afterwards, a few kv heads at a time: the next heads are gathered while the current ones compute. The
//               ranks' first halves are in rank order and their last halves in reverse, so all is in position order.
//
// Sums are taken in a fixed order, so that two runs agree bit for bit and overlap changes nothing.
#pragma once

#include <array>

#include "parallel/comm_streams.h"
#include "parallel/context.h"
#include "parallel/context/cut.h"

namespace trivet {

class ContextGroup {
 public:
  // Collective over on.group, the ranks that share the sequence. overlap: communication has its own stream.
  ContextGroup(const CommStreamSite& on, const ContextCut& cut, CpCommType type, bool overlap);

  const ContextCut& cut() const { return cut_; }
  CpCommType type() const { return type_; }

  // Each call runs after the work that compute has queued so far, while compute continues; wait(mark) makes compute
  // wait for the last call with this mark.
  static constexpr int kMarks = 4;
  void pass_on(Tensor mine, Tensor of_previous, int mark);  // around the ring; sizes are equal on all ranks
  void gather(Tensor whole, int mark);  // [s, …] in position order; this rank's positions are filled in
  void reduce(Tensor terms, int mark);  // same order; this rank's positions become sums over the group
  void wait(int mark) { compute_.wait(*marks_[static_cast<size_t>(mark)]); }

 private:
  // Calls f(this rank's part, half, group, stream) for both halves of the sequence.
  template <class F>
  void for_halves(Tensor whole, int mark, const F& f);

  const ContextCut cut_;
  const CpCommType type_;
  Stream& compute_;
  CommStreams comm_streams_;
  std::unique_ptr<Communicator> reversed_;
  std::array<std::unique_ptr<Event>, kMarks> marks_;
};

// Causal op::AttentionForward and op::AttentionBackward over all positions of a sequence. This rank holds those in
// ctx.context's cut, or all if ctx.context is null. dropout: for this rank's queries and all keys. starts: [s, b]
// int32, where the document of each of this rank's positions begins (DocumentStarts); null: a sequence is one document.
void attention_forward(Context& ctx, const QkvViews& heads, Tensor out, Tensor lse, const Dropout& dropout,
                       Tensor starts = {});
void attention_backward(Context& ctx, Tensor dout, const QkvViews& heads, Tensor out, Tensor lse, const QkvViews& dqkv,
                        const Dropout& dropout, Tensor starts = {});

}  // namespace trivet
