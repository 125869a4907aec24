// GraphOps: operations that a device repeats as a whole. A step of a small model takes the host longer to queue, call
// by call, than the GPU to run; but its micro-batches make the same calls again and again, and a graph (device.h) of
// hundreds of them costs the host one launch.
//
// While over() runs, the calls on its stream are not handed on, but noted, until something else is to be queued on the
// stream: an event, a wait, a copy, a collective, a phase of the trace, or the end. What has been noted by then is a
// segment. Its key is all that its calls were given: which operations, every address, type and shape, every number.
// A segment whose key is new is queued call by call (a first call may measure algorithms, and take memory); the second
// time it is captured, and from then on its graph is launched. So a graph is never used for anything but the very calls
// that it was made of, whoever makes them and whatever else changes, and the numbers are those of the calls. Where the
// segments end is no matter of right or wrong either: communication, overlapped or not, cuts them by being there.
//
// An argument that is never the same twice, as the sample's number of a dropout, makes every segment a new one.
#pragma once

#include <unordered_map>
#include <vector>

#include "kernels/ops.h"

namespace trivet {

class GraphOps : public Ops {
 public:
  // Both outlive this. most_calls: that are kept, as keys or in graphs; a segment that does not fit in any more is
  // queued call by call for good. REQUIRES: device.captures().
  GraphOps(Ops& ops, Device& device, int64_t most_calls = 100'000);

  // Runs f(). Calls on other streams, and those below the line at the end, go on as they are.
  template <class F>
  void over(Stream& stream, F&& f) {
    begin(stream);
    try {
      f();
      stream.settle();
    } catch (...) {
      end();
      throw;
    }
    end();
  }

  struct Counts {
    int64_t graphs = 0;    // captured
    int64_t launches = 0;  // of them
    int64_t replayed = 0;  // calls that were queued by these
    int64_t calls = 0;     // calls in all, of those that were noted
  };
  const Counts& counts() const { return counts_; }

  void matmul(Tensor a, Tensor b, Tensor c, const Matmul& how, Stream& stream) override;
  void column_sum(Tensor x, Tensor sum, Stream& stream) override;
  void layernorm_forward(Tensor x, Tensor gamma, Tensor beta, float eps, Tensor y, Tensor mean, Tensor rstd,
                         Stream& stream) override;
  void layernorm_backward(Tensor dy, Tensor x, Tensor gamma, Tensor mean, Tensor rstd, Tensor residual, Tensor dx,
                          Tensor dgamma, Tensor dbeta, Stream& stream) override;
  void gelu_forward(Tensor x, Tensor y, Stream& stream) override;
  void gelu_backward(Tensor x, Tensor dy, Tensor dx, Stream& stream) override;
  void attention_forward(Tensor qkv, Tensor out, Tensor lse, const Attention& how, Stream& stream) override;
  void attention_backward(Tensor dout, Tensor qkv, Tensor out, Tensor lse, Tensor dqkv, const Attention& how,
                          Stream& stream) override;
  void embedding_forward(Tensor tokens, Tensor table, int64_t first_row, Tensor out, Stream& stream) override;
  void embedding_backward(Tensor tokens, Tensor dout, int64_t first_row, Tensor dtable, Stream& stream) override;
  void position_forward(Tensor x, Tensor positions, const Dropout& dropout, Tensor out, Stream& stream) override;
  void position_backward(Tensor dout, const Dropout& dropout, Tensor dx, Tensor dpositions, Stream& stream) override;
  void bias_dropout_add(Tensor x, Tensor bias, Tensor residual, const Dropout& dropout, Tensor out,
                        Stream& stream) override;
  void dropout_backward(Tensor dout, const Dropout& dropout, Tensor dx, Stream& stream) override;
  void cross_entropy_forward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size, Tensor row_max,
                             Tensor row_sum, Tensor target_logit, Stream& stream) override;
  void cross_entropy_rescale(Tensor row_max, Tensor global_max, Tensor row_sum, Stream& stream) override;
  void cross_entropy_loss(Tensor row_max, Tensor row_sum, Tensor target_logit, float scale, Tensor loss,
                          Stream& stream) override;
  void cross_entropy_backward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size, Tensor row_max,
                              Tensor row_sum, float scale, Stream& stream) override;
  void fill(Tensor x, float value, Stream& stream) override;
  void convert(Tensor from, Tensor to, Stream& stream) override;
  void add(Tensor a, Tensor b, Tensor out, Stream& stream) override;

  // ---- of the optimizer, once a step

  void adamw(std::span<const AdamWPiece> pieces, Tensor grad_scale, Tensor proceed, const AdamW& how,
             Stream& stream) override {
    ops_.adamw(pieces, grad_scale, proceed, how, stream);
  }
  void sum_of_squares(std::span<const Tensor> xs, Tensor bins, Stream& stream) override {
    ops_.sum_of_squares(xs, bins, stream);
  }
  void clip_scale(Tensor bins, float multiplier, float max_norm, Tensor norm, Tensor grad_scale,
                  Stream& stream) override {
    ops_.clip_scale(bins, multiplier, max_norm, norm, grad_scale, stream);
  }
  void judge_step(Tensor numbers, const StepLimits& limits, Tensor proceed, Stream& stream) override {
    ops_.judge_step(numbers, limits, proceed, stream);
  }
  void find_non_finite(Tensor x, Tensor proceed, Tensor found, Stream& stream) override {
    ops_.find_non_finite(x, proceed, found, stream);
  }

 private:
  // The stream, and all arguments of the calls, each as one number or more.
  using Key = std::vector<uint64_t>;
  struct Hash {
    size_t operator()(const Key& key) const;
  };

  void begin(Stream& stream);
  void end();
  // (ops_.*op)(arguments..., stream), later.
  template <class Op, class... Arguments>
  void note(const char* name, Op op, Stream& stream, const Arguments&... arguments);
  void queue_segment();

  Ops& ops_;
  Device& device_;
  const int64_t most_calls_;
  Stream* stream_ = nullptr;  // of the over() that runs
  // The segment that is being noted.
  Key key_;
  std::vector<std::function<void()>> calls_;
  std::unordered_map<Key, std::unique_ptr<Graph>, Hash> graphs_;  // null: queued once
  int64_t kept_calls_ = 0;                                        // of all keys
  Counts counts_;
};

// graphs->over(stream, f), or f() where there are no graphs (null).
template <class F>
void over(GraphOps* graphs, Stream& stream, F&& f) {
  if (graphs) graphs->over(stream, f);
  else f();
}

}  // namespace trivet
