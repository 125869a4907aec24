// Ops: every numerical operation of Trivet, one contract each. CpuOps (kernels/cpu) and CudaOps (kernels/cuda) keep
// the same contracts; everything above this page is one code path.
//
// Conventions
//   * Every call enqueues on the stream given last and returns. Ops on one stream run in order.
//   * Tensors are contiguous. "[n, c]" reads a tensor as a matrix: the last dimension is c, all others are n.
//     Activations are [s, b, h], sequence first: row r is position r / b of batch entry r % b.
//   * T is fp32 or bf16, the same for all T of a call. Sums are kept in fp32 at least, whatever T is.
//   * Gradients of weights are fp32 and are added to (+=); gradients of activations are written (=).
//   * Outputs alias inputs only where the contract says so. Null tensors are allowed only where marked optional.
//   * Every op gives the same bits when it is run again, whatever the number of threads is doing besides; with
//     another number of threads a rank, sums may be cut elsewhere. (But for cuDNN's attention_backward: CudaOptions.)
//   * A wrong shape or dtype throws Error that names the op, the argument, what was found and what was expected.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/tensor.h"

namespace trivet {

// Which elements a dropout zeroes: a pure function of the seed, the site (one number a dropout in the model) and the
// element's global coordinates, so that it is the same under every layout. With 7 rounds of Philox (kernels/philox.h),
// an activation of a micro-batch has word index % 4 of philox4x32(index / 4, site, seed), where
//   index = ((first_sample + batch entry) * seq_length + first_position + position) * width + column,
// and a probability of attention word query / 8 % 2 * 2 + key / 8 % 2 of philox4x32(square, site, seed), where
//   square = (((first_sample + batch entry) * total_heads + first_head + head) * pairs + dropout_pair(key)) * pairs +
//            dropout_pair(query)   with pairs = dropout_pairs(seq_length).
// The element is kept when its word >= dropout_threshold(probability), and is then scaled by 1 / (1 - probability).
// The number of the sample is read on the device when the op runs: all else is the same in every micro-batch, so that a
// graph of the calls can be launched for each.
struct Dropout {
  float probability = 0;  // 0: everything is kept and nothing is drawn
  uint64_t seed = 0;
  uint64_t site = 0;
  Tensor first_sample = {};    // [1] int64, the micro-batch's first; null where nothing is drawn
  int64_t seq_length = 0;      // of the whole sequence
  int64_t first_position = 0;  // of this rank's slice, under sequence parallelism
  int64_t first_head = 0;      // of this rank, and
  int64_t total_heads = 0;     // of the model: attention only
};

struct AdamW {
  float learning_rate = 0, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0;
  int64_t step = 1;  // counts from 1: bias correction by 1 - beta^step
};

// An exact sum of squares: 64-bit counters on a fixed grid of 28-bit bins, from 2^-308 up (kernels/exact_sum.h). The
// sum is exact, so it has the same bits in whatever order, on however many ranks, the parts are added.
inline constexpr int64_t kExactSumBins = 24;

// What Ops::find_non_finite tells.
inline constexpr int64_t kNonFiniteNumbers = 5;

class Ops {
 public:
  virtual ~Ops() = default;

  // ---- matrix products

  struct Matmul {
    bool transpose_a = false;  // a is given as [k, m]
    bool transpose_b = false;  // b is given as [n, k]
    bool accumulate = false;   // c += a b; else c = a b
    Tensor bias{};             // optional [n] T, added to every row; not with accumulate
    // A GELU behind the product, which saves passes over memory. At most one of the two; c is T then, and nothing is
    // accumulated. On a CPU with the bits of matmul and gelu_forward or gelu_backward behind it; elsewhere near them.
    Tensor before_gelu{};    // optional [m, n] T output: a b + bias; c = gelu(before_gelu)
    Tensor gelu_backward{};  // optional [m, n] T: c = (a b) * gelu'(gelu_backward); not with a bias
  };
  // c[m, n] = a[m, k] b[k, n] + bias. a, b: T. c: T, or fp32.
  virtual void matmul(Tensor a, Tensor b, Tensor c, const Matmul& how, Stream& stream) = 0;

  // sum[c] += over rows of x[n, c]. x: T, sum: fp32. The gradient of a bias.
  virtual void column_sum(Tensor x, Tensor sum, Stream& stream) = 0;

  // ---- layer normalisation (Ba, Kiros, Hinton 2016)

  // y = (x - mean) * rstd * gamma + beta by rows. x, y: [n, h] T; gamma, beta: [h] T; mean, rstd: [n] fp32 outputs,
  // rstd = 1 / sqrt(variance + eps) with the biased variance.
  virtual void layernorm_forward(Tensor x, Tensor gamma, Tensor beta, float eps, Tensor y, Tensor mean, Tensor rstd,
                                 Stream& stream) = 0;
  // dx = residual + gradient of x; dgamma += , dbeta += (fp32). residual: optional [n, h] T, may be dx itself.
  // dx may alias dy.
  virtual void layernorm_backward(Tensor dy, Tensor x, Tensor gamma, Tensor mean, Tensor rstd, Tensor residual,
                                  Tensor dx, Tensor dgamma, Tensor dbeta, Stream& stream) = 0;

  // ---- activation (Hendrycks, Gimpel 2016), the tanh form of GPT-2

  // y = gelu(x). [n, c] T.
  virtual void gelu_forward(Tensor x, Tensor y, Stream& stream) = 0;
  // dx = dy * gelu'(x). dx may alias dy.
  virtual void gelu_backward(Tensor x, Tensor dy, Tensor dx, Stream& stream) = 0;

  // ---- causal multi-head self-attention with online softmax (Dao et al. 2022); never holds more than a tile-row
  //      of scores a thread

  struct Attention {
    int64_t heads = 0;  // on this rank
    Dropout dropout;    // of the probabilities
  };
  // qkv: [s, b, heads * 3 * d] T, for each head its query, key and value of d elements; out: [s, b, heads * d] T;
  // lse: [b, heads, s] fp32 output, log of the sum of exp of the scaled scores. Scores are scaled by 1 / sqrt(d).
  virtual void attention_forward(Tensor qkv, Tensor out, Tensor lse, const Attention& how, Stream& stream) = 0;
  // dqkv as qkv. dout as out. Recomputes the probabilities from qkv and lse.
  virtual void attention_backward(Tensor dout, Tensor qkv, Tensor out, Tensor lse, Tensor dqkv, const Attention& how,
                                  Stream& stream) = 0;

  // ---- embeddings

  // out[r] = table[tokens[r] - first_row], or zero where that is no row of this rank's table.
  // tokens: [s, b] int32; table: [rows, h] T; out: [s, b, h] T.
  virtual void embedding_forward(Tensor tokens, Tensor table, int64_t first_row, Tensor out, Stream& stream) = 0;
  // dtable[tokens[r] - first_row] += dout[r], equal tokens in order of r. dtable: [rows, h] fp32.
  virtual void embedding_backward(Tensor tokens, Tensor dout, int64_t first_row, Tensor dtable, Stream& stream) = 0;
  // out = dropout(x + positions[position]). x, out: [s, b, h] T; positions: [s, h] T. out may alias x.
  virtual void position_forward(Tensor x, Tensor positions, const Dropout& dropout, Tensor out, Stream& stream) = 0;
  // dx = dropped dout; dpositions[position] += over the batch of dx. dpositions: [s, h] fp32. dx may alias dout.
  virtual void position_backward(Tensor dout, const Dropout& dropout, Tensor dx, Tensor dpositions, Stream& stream) = 0;

  // ---- residual branch

  // out = residual + dropout(x + bias). x, residual, out: [s, b, h] T; bias: optional [h] T. out may alias x or
  // residual.
  virtual void bias_dropout_add(Tensor x, Tensor bias, Tensor residual, const Dropout& dropout, Tensor out,
                                Stream& stream) = 0;
  // dx = dropped dout: the gradient of x above, by the same mask. [s, b, h] T. dx may alias dout.
  virtual void dropout_backward(Tensor dout, const Dropout& dropout, Tensor dx, Stream& stream) = 0;

  // ---- softmax cross-entropy in the pieces that a vocabulary cut over ranks needs (Shoeybi et al. 2019, section 3)

  // One pass over this rank's columns. logits: [n, v] T, whose column j is vocabulary entry first_column + j; entries
  // from `vocab_size` on are padding and never enter. targets: [n] int32. Outputs, [n] fp32: row_max (-inf where all
  // columns are padding), row_sum = sum of exp(logit - row_max), target_logit (0 where the target is on another rank).
  virtual void cross_entropy_forward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size,
                                     Tensor row_max, Tensor row_sum, Tensor target_logit, Stream& stream) = 0;
  // row_sum *= exp(row_max - global_max): from this rank's maximum to the one over all ranks. [n] fp32.
  virtual void cross_entropy_rescale(Tensor row_max, Tensor global_max, Tensor row_sum, Stream& stream) = 0;
  // loss[0] += scale * sum over rows, in double, of log(row_sum) + row_max - target_logit. loss: [1] fp32.
  virtual void cross_entropy_loss(Tensor row_max, Tensor row_sum, Tensor target_logit, float scale, Tensor loss,
                                  Stream& stream) = 0;
  // In place: logits = scale * (softmax - one-hot of the target), 0 in padded columns. row_max, row_sum: global.
  virtual void cross_entropy_backward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size,
                                      Tensor row_max, Tensor row_sum, float scale, Stream& stream) = 0;

  // ---- optimizer

  // n elements of the optimizer's state, all [n] fp32 but model_weight.
  struct AdamWPiece {
    Tensor weight, grad, m, v;  // m, v: moments
    Tensor model_weight{};      // optional [n] bf16, receives the rounded weight
    bool decays = true;         // else the weight decay is 0
  };
  // AdamW with decoupled decay (Loshchilov, Hutter 2019), on all pieces at once:
  //   g = grad * grad_scale[0];  weight -= lr * (m^ / (sqrt(v^) + eps) + weight_decay * weight)
  // grad_scale: [1] fp32. proceed: optional [1] fp32; where it is 0, nothing is written. Both are read when the stream
  // gets there: the host need not know them. How elements are cut into pieces changes no bit.
  virtual void adamw(std::span<const AdamWPiece> pieces, Tensor grad_scale, Tensor proceed, const AdamW& how,
                     Stream& stream) = 0;
  void adamw(Tensor weight, Tensor grad, Tensor m, Tensor v, Tensor model_weight, Tensor grad_scale, Tensor proceed,
             const AdamW& how, Stream& stream) {
    const AdamWPiece piece{weight, grad, m, v, model_weight};
    adamw(std::span(&piece, 1), grad_scale, proceed, how, stream);
  }
  // bins += the exact sum of squares of all xs (fp32), or bins.last() += the count of their non-finite elements.
  // bins: [kExactSumBins] int64.
  virtual void sum_of_squares(std::span<const Tensor> xs, Tensor bins, Stream& stream) = 0;
  void sum_of_squares(Tensor x, Tensor bins, Stream& stream) { sum_of_squares(std::span(&x, 1), bins, stream); }
  // norm[0] = multiplier * sqrt(the sum in bins), NaN where an element was not finite; grad_scale[0] = multiplier *
  // min(1, max_norm / (norm + 1e-6)), or just multiplier where max_norm <= 0. All [1] fp32. As Megatron clips.
  virtual void clip_scale(Tensor bins, float multiplier, float max_norm, Tensor norm, Tensor grad_scale,
                          Stream& stream) = 0;

  // ---- whether a step is taken, decided on the device

  // What a step's numbers, up to kJudgedNumbers of them, may be.
  static constexpr size_t kJudgedNumbers = 4;
  struct StepLimits {
    std::array<float, kJudgedNumbers> at_most;  // a finite number above it is refused; +inf: none is
    bool finite = true;                         // a number that is not finite is refused
  };
  // proceed[0] = 1, or 0 where one of the numbers is refused. numbers: [n] fp32, proceed: [1] fp32.
  virtual void judge_step(Tensor numbers, const StepLimits& limits, Tensor proceed, Stream& stream) = 0;
  // Looks through x where the step is refused for what is not finite, so that a report can name it when the gradients
  // are gone: where proceed[0] is 0, found = {index of the first such element or -1, NaNs, infinities, bits of that
  // element, bits of the one before it}; else found is left as it is. x: [n] fp32; found: [kNonFiniteNumbers] int64.
  virtual void find_non_finite(Tensor x, Tensor proceed, Tensor found, Stream& stream) = 0;

  // ---- plain

  virtual void fill(Tensor x, float value, Stream& stream) = 0;          // x: any dtype
  virtual void clear(std::span<const Tensor> xs, Stream& stream) = 0;    // all bytes 0; xs: any dtypes
  virtual void convert(Tensor from, Tensor to, Stream& stream) = 0;      // fp32 <-> bf16, or a copy
  virtual void add(Tensor a, Tensor b, Tensor out, Stream& stream) = 0;  // out = a + b, T; out may alias either
};

// threads: how many threads each op uses, those of its caller included. trivet::CpuOps itself is in kernels/cpu.
std::unique_ptr<Ops> create_cpu_ops(int threads);

// Of one attention_forward, on this rank.
struct AttentionShape {
  int64_t s = 0, b = 0, heads = 0, d = 0;
  DType dtype = DType::bf16;
  bool operator==(const AttentionShape&) const = default;
};

struct CudaOptions {
  bool tf32 = false;  // fp32 products by the tensor cores, which keep 10 bits of the mantissa of what they multiply
  // How many of cuBLASLt's proposals a product's shape tries out when it first comes; 1 takes the first one untried, so
  // that two runs choose alike.
  int product_candidates = 8;
  // Smaller products, in multiplications and additions, take the first one too: they take a launch's time anyway.
  double trial_operations = 1e9;
  // Attention of this shape, without dropout, is cuDNN's; all other attention is computed by the kernels of this
  // folder.
  std::optional<AttentionShape> cudnn_attention{};
  // Attention on a GPU of compute capability 9.0 (H100, H200) is by kernels of its own, which no other GPU can run.
  bool hopper_attention = true;
  // cuDNN's attention_backward adds in a fixed order; that takes 2 b heads s^2 bytes of workspace. Else in any order.
  bool deterministic = true;
};
// On the GPU of `device`, which outlives them. Called by the thread that made the device. In a build without CUDA
// (no_cuda.cc), and where cuDNN is asked for and is not there, or has nothing for the shape: ConfigError.
std::unique_ptr<Ops> create_cuda_ops(Device& device, const CudaOptions& options = {});

}  // namespace trivet
