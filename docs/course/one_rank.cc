// One rank: everything it takes to train a GPT, in one file without a library. Read it from top to bottom.
//
//   c++ -std=c++20 -O3 -march=native docs/course/one_rank.cc -o build/one_rank
//   build/one_rank DATA_PREFIX STEPS         trains on DATA_PREFIX.bin and .idx, which `trivet data prepare` writes
//   build/one_rank DATA_PREFIX STEPS draw    trains, then draws the attention of the last layer
//   build/one_rank DATA_PREFIX check         compares the backward pass with finite differences
//
// It trains the run of docs/course/one_rank.yaml. Initial weights, samples and their order, losses and gradient norms
// are those of `trivet train docs/course/one_rank.yaml`; the test course.one_rank compares them in CI. The engine adds
// speed, other devices, and ranks that share the work. Comments "engine: FILE:SYMBOL" say where it does the same.
//
//   1 numbers   2 ops, each forward pass with its backward pass   3 the model   4 the data   5 the optimizer
//   6 training
//
// Conventions
//   * Matrices are stored row by row; [n, h] has n rows and h columns. A micro-batch of b samples of s tokens has
//     n = b s rows: row r is position r % s of sample r / s. (In the engine, row r is position r / b of sample r % b.)
//   * dx is the gradient of the loss with respect to x. The backward pass of an op takes the gradient of its output and
//     computes the gradients of its inputs. Gradients of activations are written (=). Gradients of weights are added
//     (+=): every micro-batch contributes, and so does every use of a weight.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numbers>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

// ---- 1. numbers

#ifndef REAL
#define REAL float  // -DREAL=double: to check gradients more closely than fp32 can
#endif
using real = REAL;
using Vector = std::vector<real>;
using Tokens = std::vector<int>;

// The model. engine: engine/config/config.h:ModelConfig
constexpr int L = 2;               // layers
constexpr int h = 48;              // hidden size: the columns of the residual stream
constexpr int a = 3;               // attention heads
constexpr int d = h / a;           // columns of a head
constexpr int f = 4 * h;           // columns within the MLP
constexpr int s = 64;              // positions of a sample
constexpr int vocab = 257;         // the tokens: 256 bytes, and the end of a document
constexpr real kEpsilon = 1e-5;    // of layer norms
constexpr float kInitStd = 0.08f;  // standard deviation of initial weights

// A step. engine: engine/config/config.h:BatchConfig
constexpr int b = 4;                        // samples of a micro-batch
constexpr int micro_batches = 4;            // of a step
constexpr int n = b * s;                    // rows of a micro-batch
constexpr int kTokens = n * micro_batches;  // of a step

// The optimizer. engine: engine/config/config.h:OptimizerConfig
constexpr double kLr = 3e-3, kMinLr = kLr / 10;
constexpr int kWarmup = 10, kDecay = 200;  // steps
constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kAdamEps = 1e-8;
constexpr double kWeightDecay = 0.1, kClip = 1.0;

constexpr uint64_t kSeed = 1234;  // of weights and shuffles

// ---- 2. ops

// A weight, its gradient, and Adam's two moments. engine: parallel/param.h:Param
struct Param {
  std::string name;  // as in checkpoints and in Megatron; the initial values depend on it
  bool decays;       // by weight decay
  Vector weight, grad, m, v;
};

// c += x y, with x [rows, inner], y [inner, cols], c [rows, cols]. Nearly all of the time is spent here. The innermost
// loop runs along rows of y and c, so the compiler can use vector instructions.
// engine: kernels/layer_ops.h:Matmul, kernels/cpu/blocked_gemm.h
void add_product(int rows, int inner, int cols, const Vector& x, const Vector& y, Vector& c) {
  for (int i = 0; i < rows; ++i)
    for (int k = 0; k < inner; ++k) {
      const real factor = x[i * inner + k];
      for (int j = 0; j < cols; ++j) c[i * cols + j] += factor * y[k * cols + j];
    }
}

Vector transposed(int rows, int cols, const Vector& x) {
  Vector result(rows * cols);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < cols; ++j) result[j * rows + i] = x[i * cols + j];
  return result;
}

// y = x W^T + bias:   y[r, o] = sum over i of x[r, i] W[o, i], + bias[o]
// x [n, in], weight [out, in], bias [out] or null, y [n, out].
// engine: parallel/tensor/linear.cc:ColumnParallelLinear::forward
void linear_forward(const Vector& x, const Param& weight, const Param* bias, Vector& y) {
  const int in = x.size() / n, out = y.size() / n;
  for (int r = 0; r < n; ++r)
    for (int o = 0; o < out; ++o) y[r * out + o] = bias ? bias->weight[o] : 0;
  add_product(n, in, out, x, transposed(out, in, weight.weight), y);
}

// y[r, o] contains x[r, i] W[o, i]: its derivative is W[o, i] with respect to x[r, i], and x[r, i] with respect to
// W[o, i]. The chain rule sums over all outputs that an input reaches:
//   dx = dy W [n, in],   dW += dy^T x [out, in],   dbias += sum of the rows of dy [out].
// The forward pass is one product of 2 n in out FLOPs and the backward pass two, hence "6 FLOPs per weight per token".
// engine: parallel/tensor/linear.cc:ColumnParallelLinear::backward
void linear_backward(const Vector& dy, const Vector& x, Param& weight, Param* bias, Vector& dx) {
  const int in = x.size() / n, out = dy.size() / n;
  std::fill(dx.begin(), dx.end(), real(0));
  add_product(n, out, in, dy, weight.weight, dx);
  add_product(out, n, in, transposed(n, out, dy), x, weight.grad);
  for (int r = 0; bias && r < n; ++r)
    for (int o = 0; o < out; ++o) bias->grad[o] += dy[r * out + o];
}

real dot(int count, const real* x, const real* y) {
  real sum = 0;
  for (int i = 0; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

void add_scaled(int count, real factor, const real* x, real* y) {
  for (int i = 0; i < count; ++i) y[i] += factor * x[i];
}
void add(const Vector& x, Vector& y) { add_scaled(n * h, 1, x.data(), y.data()); }

// Layer normalisation (Ba, Kiros, Hinton 2016), for each row of x [n, h]:
//   xhat = (x - mean) rstd,   y = xhat gamma + beta,   rstd = 1 / sqrt(variance + epsilon).
// The backward pass reads mean and rstd [n].
// engine: kernels/layer_ops.h:LayernormForward
void layernorm_forward(const Vector& x, const Param& gamma, const Param& beta, Vector& y, Vector& mean, Vector& rstd) {
  for (int r = 0, first = 0; r < n; ++r, first += h) {
    real sum = 0, squares = 0;
    for (int i = 0; i < h; ++i) sum += x[first + i];
    mean[r] = sum / h;
    for (int i = 0; i < h; ++i) squares += (x[first + i] - mean[r]) * (x[first + i] - mean[r]);
    rstd[r] = 1 / std::sqrt(squares / h + kEpsilon);
    for (int i = 0; i < h; ++i) y[first + i] = (x[first + i] - mean[r]) * rstd[r] * gamma.weight[i] + beta.weight[i];
  }
}

// With g = dy gamma, the gradient of xhat,
//   dgamma += dy xhat,   dbeta += dy,   dx += rstd (g - mean of g - xhat (mean of g xhat)).
// y does not change when x is shifted or scaled, so dx has no component in these two directions: the means remove them.
// dx is added to: x also continues along the residual stream, and dx already holds the gradient from there.
// engine: kernels/layer_ops.h:LayernormBackward
void layernorm_backward(const Vector& dy, const Vector& x, const Vector& mean, const Vector& rstd, Param& gamma,
                        Param& beta, Vector& dx) {
  for (int r = 0, first = 0; r < n; ++r, first += h) {
    Vector xhat(h), g(h);
    for (int i = 0; i < h; ++i) {
      xhat[i] = (x[first + i] - mean[r]) * rstd[r];
      g[i] = dy[first + i] * gamma.weight[i];
      gamma.grad[i] += dy[first + i] * xhat[i];
      beta.grad[i] += dy[first + i];
    }
    const real mean_g = std::accumulate(g.begin(), g.end(), real(0)) / h;
    const real mean_g_xhat = dot(h, g.data(), xhat.data()) / h;
    for (int i = 0; i < h; ++i) dx[first + i] += rstd[r] * (g[i] - mean_g - xhat[i] * mean_g_xhat);
  }
}

// Causal attention (Vaswani et al. 2017). A head of a sample has queries, keys and values Q, K, V [s, d], and computes
//   S = Q K^T / sqrt(d) [s, s],   P = softmax of each row of S over the keys j <= i,   out = P V [s, d].
// If the entries of Q and K are independent with variance 1, a sum of d products has variance d; the root brings it
// back to 1, so that the softmax starts soft.
// qkv [n, 3 h] holds, for each head, d columns of queries, d of keys, d of values; probabilities [b, a, s, s] is P of
// every head, for the backward pass; out [n, h].
// engine: kernels/layer_ops.h:AttentionForward. It stores one number per query, the logarithm of `sum`, and recomputes
// P from it, a tile at a time (Dao et al. 2022): no [s, s] matrix ever exists.
void attention_forward(const Vector& qkv, Vector& probabilities, Vector& out) {
  const real scale = 1 / std::sqrt(real(d));
  for (int sample = 0; sample < b; ++sample)
    for (int head = 0; head < a; ++head) {
      const real *q = &qkv[sample * s * 3 * h + head * 3 * d], *k = q + d, *v = k + d;  // rows are 3 h apart
      real* P = &probabilities[(sample * a + head) * s * s];
      real* to = &out[sample * s * h + head * d];  // rows are h apart
      for (int i = 0; i < s; ++i, P += s, to += h) {
        for (int j = 0; j <= i; ++j) P[j] = scale * dot(d, q + i * 3 * h, k + j * 3 * h);
        const real largest = *std::max_element(P, P + i + 1);  // subtracted, so that exp() does not overflow
        real sum = 0;
        for (int j = 0; j <= i; ++j) sum += P[j] = std::exp(P[j] - largest);
        std::fill_n(to, d, real(0));
        for (int j = 0; j <= i; ++j) add_scaled(d, P[j] /= sum, v + j * 3 * h, to);
      }
    }
}

// The same mathematics from its last line to its first. out = P V is a product, as in linear_backward:
//   dV = P^T dout,   dP = dout V^T.
// The softmax has dP[j] / dS[k] = P[j] ([j = k] - P[k]). Summed over j, in each row,
//   dS[k] = P[k] (dP[k] - delta),   delta = sum over j of P[j] dP[j].
// Only the difference from the mean, delta, counts: a constant added to all scores changes no probability. Last,
//   dQ = dS K / sqrt(d),   dK = dS^T Q / sqrt(d).
// engine: kernels/layer_ops.h:AttentionBackward
void attention_backward(const Vector& dout, const Vector& qkv, const Vector& probabilities, Vector& dqkv) {
  const real scale = 1 / std::sqrt(real(d));
  std::fill(dqkv.begin(), dqkv.end(), real(0));
  Vector dP(s);
  for (int sample = 0; sample < b; ++sample)
    for (int head = 0; head < a; ++head) {
      const int first = sample * s * 3 * h + head * 3 * d;
      const real *q = &qkv[first], *k = q + d, *v = k + d;
      real *dq = &dqkv[first], *dk = dq + d, *dv = dk + d;
      const real* P = &probabilities[(sample * a + head) * s * s];
      const real* from = &dout[sample * s * h + head * d];
      for (int i = 0; i < s; ++i, P += s, from += h) {
        for (int j = 0; j <= i; ++j) dP[j] = dot(d, from, v + j * 3 * h);
        const real delta = dot(i + 1, P, dP.data());
        for (int j = 0; j <= i; ++j) {
          const real dS = P[j] * (dP[j] - delta) * scale;
          add_scaled(d, P[j], from, dv + j * 3 * h);
          add_scaled(d, dS, k + j * 3 * h, dq + i * 3 * h);
          add_scaled(d, dS, q + i * 3 * h, dk + j * 3 * h);
        }
      }
    }
}

// GELU (Hendrycks, Gimpel 2016) in GPT-2's form, for each element of x [n, f]:
//   y = x (1 + tanh u) / 2,   u = sqrt(2 / pi) (x + 0.044715 x^3).
// engine: kernels/activation.h:Gelu
constexpr double kGeluLinear = 0.7978845608028654, kGeluCubic = 0.044715 * kGeluLinear;

void gelu_forward(const Vector& x, Vector& y) {
  for (size_t i = 0; i < x.size(); ++i) {
    const real u = x[i] * (real(kGeluLinear) + real(kGeluCubic) * x[i] * x[i]);
    y[i] = x[i] * (1 + std::tanh(u)) / 2;
  }
}

// dx = dy y'. With t = tanh u, whose derivative is 1 - t^2,   y' = (1 + t) / 2 + x (1 - t^2) u' / 2.
void gelu_backward(const Vector& dy, const Vector& x, Vector& dx) {
  for (size_t i = 0; i < x.size(); ++i) {
    const real x2 = x[i] * x[i], t = std::tanh(x[i] * (real(kGeluLinear) + real(kGeluCubic) * x2));
    const real du = real(kGeluLinear) + 3 * real(kGeluCubic) * x2;
    dx[i] = dy[i] * ((1 + t) / 2 + x[i] * (1 - t * t) * du / 2);
  }
}

// out[r] = word[tokens[r]] + position[r % s]. tokens [n], word [vocab, h], position [s, h], out [n, h].
// engine: engine/model/embedding.h:Embedding, kernels/layer_ops.h:EmbeddingForward
void embedding_forward(const Tokens& tokens, const Param& word, const Param& position, Vector& out) {
  for (int r = 0; r < n; ++r)
    for (int i = 0; i < h; ++i) out[r * h + i] = word.weight[tokens[r] * h + i] + position.weight[r % s * h + i];
}

// A row of a table receives the gradients of all rows that it was copied to.
// engine: kernels/layer_ops.h:EmbeddingBackward
void embedding_backward(const Tokens& tokens, const Vector& dout, Param& word, Param& position) {
  for (int r = 0; r < n; ++r) {
    add_scaled(h, 1, &dout[r * h], &word.grad[tokens[r] * h]);
    add_scaled(h, 1, &dout[r * h], &position.grad[r % s * h]);
  }
}

// The loss of a row is -log P[label], where P is the softmax of its logits; logits [n, vocab]. Returns scale times the
// sum over rows, and replaces the logits by P. With scale = 1 / kTokens the micro-batches of a step add up to the mean.
// engine: kernels/step_ops.h:CrossEntropyForward
double cross_entropy_forward(Vector& logits, const Tokens& labels, double scale) {
  double loss = 0;
  for (int r = 0; r < n; ++r) {
    real* const row = &logits[r * vocab];
    const real largest = *std::max_element(row, row + vocab), of_label = row[labels[r]];
    real sum = 0;
    for (int j = 0; j < vocab; ++j) sum += row[j] = std::exp(row[j] - largest);
    for (int j = 0; j < vocab; ++j) row[j] /= sum;
    loss += std::log(sum) + largest - of_label;
  }
  return loss * scale;
}

// Replaces P by dlogits = scale (P - one-hot vector of the label). engine: kernels/step_ops.h:CrossEntropyBackward
void cross_entropy_backward(Vector& P, const Tokens& labels, double scale) {
  for (int r = 0; r < n; ++r) P[r * vocab + labels[r]] -= 1;
  for (real& x : P) x *= real(scale);
}

// ---- 3. the model

// Philox4x32-10 (Salmon et al. 2011): four random words as a function of a counter and a key. It has no state, so any
// rank can draw the numbers of any part of a weight. engine: kernels/philox.h:philox4x32
using Words = std::array<uint32_t, 4>;
Words philox(uint64_t counter_low, uint64_t counter_high, uint64_t key) {
  const auto low = [](uint64_t x) { return uint32_t(x); };
  const auto high = [](uint64_t x) { return uint32_t(x >> 32); };
  uint32_t c0 = low(counter_low), c1 = high(counter_low), c2 = low(counter_high), c3 = high(counter_high);
  uint32_t k0 = low(key), k1 = high(key);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    c0 = high(p1) ^ c1 ^ k0, c2 = high(p0) ^ c3 ^ k1;
    c1 = low(p1), c3 = low(p0);
  }
  return {c0, c1, c2, c3};
}

// Element i of a weight is std times a normal number, a function of the seed, the weight's name and i alone. The
// Box-Muller method makes two normal numbers from two uniform ones. engine: engine/model/init.h:initial_normal
Vector normal_weight(const std::string& name, int count, float std) {
  uint64_t key = 0xcbf29ce484222325ull ^ (kSeed * 0x9E3779B97F4A7C15ull);
  for (const char c : name) key = (key ^ uint8_t(c)) * 0x100000001b3ull;  // the hash FNV-1a
  Vector weight(count);
  for (int i = 0; i < count; ++i) {
    const Words words = philox(i / 4, 0, key);
    const int pair = i % 4 / 2 * 2;
    const double radius = std::sqrt(-2 * std::log((words[pair] + 0.5) * 0x1p-32));
    const double angle = 2 * std::numbers::pi * ((words[pair + 1] + 0.5) * 0x1p-32);
    weight[i] = std * static_cast<float>(radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle)));
  }
  return weight;
}

Param make_param(std::string name, Vector weight, bool decays) {
  const Vector zeros(weight.size());
  return {std::move(name), decays, std::move(weight), zeros, zeros, zeros};
}
Param make_matrix(const std::string& name, int rows, int cols, float std) {
  return make_param(name, normal_weight(name, rows * cols, std), true);
}

struct Linear {
  Param weight, bias;  // [out, in], [out]

  Linear(const std::string& name, int in, int out, float std)
      : weight(make_matrix(name + ".weight", out, in, std)), bias(make_param(name + ".bias", Vector(out, 0), false)) {}
  void forward(const Vector& x, Vector& y) const { linear_forward(x, weight, &bias, y); }
  void backward(const Vector& dy, const Vector& x, Vector& dx) { linear_backward(dy, x, weight, &bias, dx); }
};

struct NormActivations {
  Vector out = Vector(n * h);                 // [n, h]
  Vector mean = Vector(n), rstd = Vector(n);  // [n]
};

struct LayerNorm {
  Param gamma, beta;  // [h]

  explicit LayerNorm(const std::string& name)
      : gamma(make_param(name + ".weight", Vector(h, 1), false)),
        beta(make_param(name + ".bias", Vector(h, 0), false)) {}
  void forward(const Vector& x, NormActivations& acts) const {
    layernorm_forward(x, gamma, beta, acts.out, acts.mean, acts.rstd);
  }
  void backward(const Vector& dy, const Vector& x, const NormActivations& acts, Vector& dx) {  // dx +=
    layernorm_backward(dy, x, acts.mean, acts.rstd, gamma, beta, dx);
  }
};

// Activations of a block that its backward pass reads. engine: engine/model/block.h:BlockActivations
struct BlockActivations {
  NormActivations ln1;
  Vector qkv = Vector(n * 3 * h);                // [n, 3 h]
  Vector probabilities = Vector(b * a * s * s);  // [b, a, s, s]
  Vector attention_out = Vector(n * h);          // [n, h]
  Vector middle = Vector(n * h);                 // [n, h] the residual stream between the branches
  NormActivations ln2;
  Vector fc1_out = Vector(n * f);    // [n, f]
  Vector activated = Vector(n * f);  // [n, f]
  Vector out = Vector(n * h);        // [n, h] the residual stream
};

// Two branches on a residual stream. Attention moves information between positions; the MLP computes within each.
//
//   x ── ln1 ── qkv ── attention ── proj ── + ── ln2 ── fc1 ── gelu ── fc2 ── + ── out
//    └──────────────────────────────────────┘└────────────────────────────────┘
//
// engine: engine/model/block.h:Block
struct Block {
  LayerNorm ln1;
  Linear qkv, proj;
  LayerNorm ln2;
  Linear fc1, fc2;

  // 2 L layers add to the residual stream. They start smaller, so that its variance does not grow with depth (Radford
  // et al. 2019). engine: engine/model/block.cc:output_init
  static float output_std() { return kInitStd * (1.0f / std::sqrt(2.0f * L)); }
  explicit Block(const std::string& name)
      : ln1(name + ".input_layernorm"),
        qkv(name + ".self_attention.linear_qkv", h, 3 * h, kInitStd),
        proj(name + ".self_attention.linear_proj", h, h, output_std()),
        ln2(name + ".pre_mlp_layernorm"),
        fc1(name + ".mlp.linear_fc1", h, f, kInitStd),
        fc2(name + ".mlp.linear_fc2", f, h, output_std()) {}

  // engine: engine/model/block.cc:Block::forward
  void forward(const Vector& x, BlockActivations& acts) const {
    ln1.forward(x, acts.ln1);                                             // [n, h]
    qkv.forward(acts.ln1.out, acts.qkv);                                  // [n, 3 h]
    attention_forward(acts.qkv, acts.probabilities, acts.attention_out);  // [n, h]
    proj.forward(acts.attention_out, acts.middle);                        // [n, h]
    add(x, acts.middle);
    ln2.forward(acts.middle, acts.ln2);          // [n, h]
    fc1.forward(acts.ln2.out, acts.fc1_out);     // [n, f]
    gelu_forward(acts.fc1_out, acts.activated);  // [n, f]
    fc2.forward(acts.activated, acts.out);       // [n, h]
    add(acts.middle, acts.out);
  }

  // The same from the last line to the first. grad [n, h] is the gradient of `out` and becomes that of x, in place.
  // Both terms of a sum have the gradient of the sum: it continues along the stream and also enters the branch. The
  // branch ends at its layer norm, which adds to the stream's grad. engine: engine/model/block.cc:Block::backward
  void backward(const Vector& x, const BlockActivations& acts, Vector& grad) {
    Vector d_norm(n * h), d_hidden(n * f), d_attention(n * h), d_qkv(n * 3 * h);
    fc2.backward(grad, acts.activated, d_hidden);
    gelu_backward(d_hidden, acts.fc1_out, d_hidden);
    fc1.backward(d_hidden, acts.ln2.out, d_norm);
    ln2.backward(d_norm, acts.middle, acts.ln2, grad);

    proj.backward(grad, acts.attention_out, d_attention);
    attention_backward(d_attention, acts.qkv, acts.probabilities, d_qkv);
    qkv.backward(d_qkv, acts.ln1.out, d_norm);
    ln1.backward(d_norm, x, acts.ln1, grad);
  }
};

// GPT-2 (Radford et al. 2019): token and position embeddings, L blocks, a layer norm, and an output layer whose weight
// is that of the token embedding. engine: engine/model/gpt_stage.h:GptStage, engine/model/head.h:Head
struct Model {
  Param word = make_matrix("embedding.word_embeddings.weight", vocab, h, kInitStd);      // [vocab, h]
  Param position = make_matrix("embedding.position_embeddings.weight", s, h, kInitStd);  // [s, h]
  std::vector<Block> blocks;
  LayerNorm final_norm{"decoder.final_layernorm"};

  // Activations of one micro-batch
  Vector embedded = Vector(n * h);  // [n, h]
  std::vector<BlockActivations> acts = std::vector<BlockActivations>(L);
  NormActivations norm;
  Vector logits = Vector(n * vocab);  // [n, vocab], then probabilities, then gradients

  Model() {
    for (int layer = 0; layer < L; ++layer) blocks.emplace_back("decoder.layers." + std::to_string(layer));
  }

  std::vector<Param*> params() {
    std::vector<Param*> all{&word, &position};
    for (Block& of : blocks)
      for (Param* param : {&of.ln1.gamma, &of.ln1.beta, &of.qkv.weight, &of.qkv.bias, &of.proj.weight, &of.proj.bias,
                           &of.ln2.gamma, &of.ln2.beta, &of.fc1.weight, &of.fc1.bias, &of.fc2.weight, &of.fc2.bias})
        all.push_back(param);
    all.insert(all.end(), {&final_norm.gamma, &final_norm.beta});
    return all;
  }

  const Vector& input_of(int layer) const { return layer == 0 ? embedded : acts[layer - 1].out; }

  // scale times the loss of a micro-batch, summed over its n rows. tokens, labels [n].
  // engine: engine/model/gpt_stage.cc:GptStage::forward
  double forward(const Tokens& tokens, const Tokens& labels, double scale) {
    embedding_forward(tokens, word, position, embedded);
    for (int layer = 0; layer < L; ++layer) blocks[layer].forward(input_of(layer), acts[layer]);
    final_norm.forward(input_of(L), norm);
    linear_forward(norm.out, word, nullptr, logits);
    return cross_entropy_forward(logits, labels, scale);
  }

  // Adds the gradients of that loss to `grad` of each parameter. engine: engine/model/gpt_stage.cc:GptStage::backward
  void backward(const Tokens& tokens, const Tokens& labels, double scale) {
    Vector grad(n * h), d_norm(n * h);
    cross_entropy_backward(logits, labels, scale);
    linear_backward(logits, norm.out, word, nullptr, d_norm);
    final_norm.backward(d_norm, input_of(L), norm, grad);
    for (int layer = L; layer-- > 0;) blocks[layer].backward(input_of(layer), acts[layer], grad);
    embedding_backward(tokens, grad, word, position);
  }
};

// ---- 4. the data

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "one_rank: %s\n", what.c_str());
  std::exit(1);
}

template <class T>
std::vector<T> read_array(const std::string& path, size_t offset, size_t count) {
  std::vector<T> values(count);
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (!file) fail("cannot open " + path);
  if (std::fseek(file, long(offset), SEEK_SET) != 0 || std::fread(values.data(), sizeof(T), count, file) != count)
    fail(path + " is too short");
  std::fclose(file);
  return values;
}

// Megatron's format. PREFIX.bin holds the tokens of all documents, one after another; PREFIX.idx their number (u64 at
// byte 18) and lengths (i32 from byte 34 on). engine: engine/data/indexed_dataset.h:IndexedDataset
struct Corpus {
  std::vector<int> lengths;
  std::vector<uint16_t> tokens;

  explicit Corpus(const std::string& prefix) {
    const std::string idx = prefix + ".idx";
    const std::vector<char> header = read_array<char>(idx, 0, 34);
    uint64_t documents = 0;
    std::memcpy(&documents, &header[18], sizeof documents);
    if (std::memcmp(header.data(), "MMIDIDX", 7) != 0 || header[17] != 8) fail(idx + " is no index of 16-bit tokens");
    lengths = read_array<int>(idx, 34, documents);
    tokens = read_array<uint16_t>(prefix + ".bin", 0, std::accumulate(lengths.begin(), lengths.end(), size_t(0)));
    for (const int token : tokens)
      if (token >= vocab) fail(prefix + ".bin has token " + std::to_string(token) + ", and vocab is less");
    if (tokens.size() <= s) fail(prefix + ".bin has too few tokens for a sample");
  }
};

// A permutation of 0 … count-1 (Fisher and Yates). engine: engine/data/shuffle.h:permutation
std::vector<uint32_t> permutation(uint32_t count, uint64_t stream) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  for (uint64_t i = count; i-- > 1;) {
    const Words random = philox(i / 2, stream, kSeed);
    const uint64_t word = uint64_t(random[i % 2 * 2]) << 32 | random[i % 2 * 2 + 1];
    std::swap(order[i], order[uint64_t((unsigned __int128)(word) * (i + 1) >> 64)]);  // uniform in 0 … i
  }
  return order;
}

// An epoch is all documents in a random order. Epochs follow each other in one stream of tokens, which is cut into
// windows of s tokens; the windows that begin in an epoch are shuffled as well. So sample i is a function of i and the
// seed alone, and a run can stop anywhere and resume. engine: engine/data/gpt_dataset.h:GptDataset, which stores three
// index tables instead of the tokens
struct Samples {
  struct Epoch {
    std::vector<uint16_t> tokens;
    std::vector<uint32_t> windows;
  };
  Corpus corpus;
  std::map<int64_t, Epoch> epochs{};

  int64_t size() const { return int64_t(corpus.tokens.size()); }  // of an epoch
  int64_t first_window(int64_t epoch) const { return (epoch * size() + s - 1) / s; }

  const Epoch& epoch(int64_t number) {
    const auto [at, is_new] = epochs.try_emplace(number);
    Epoch& made = at->second;
    if (!is_new) return made;
    const std::vector<int>& lengths = corpus.lengths;
    std::vector<size_t> begin(lengths.size());
    std::exclusive_scan(lengths.begin(), lengths.end(), begin.begin(), size_t(0));
    for (const uint32_t document : permutation(lengths.size(), 2 * number)) {
      const uint16_t* const first = &corpus.tokens[begin[document]];
      made.tokens.insert(made.tokens.end(), first, first + lengths[document]);
    }
    made.windows = permutation(first_window(number + 1) - first_window(number), 2 * number + 1);
    return made;
  }

  // The label of a position is the next token: s tokens and their labels are s + 1 tokens of the stream.
  void read(int64_t index, int* tokens, int* labels) {
    const int64_t number = index * s / size(), first = first_window(number);
    int64_t at = (first + epoch(number).windows[index - first]) * s;  // in the stream
    for (int i = 0; i <= s; ++i, ++at) {
      const int token = epoch(at / size()).tokens[at % size()];
      if (i < s) tokens[i] = token;
      if (i > 0) labels[i - 1] = token;
    }
  }
};

// ---- 5. the optimizer

// Linear warm-up, then half a cosine down to kMinLr; steps count from 1. engine:
// engine/train/lr_schedule.h:learning_rate
double learning_rate(int step) {
  if (step <= kWarmup) return kLr * step / kWarmup;
  const double r = std::min(1.0, double(step - kWarmup) / (kDecay - kWarmup));
  return kMinLr + (kLr - kMinLr) * 0.5 * (std::cos(std::numbers::pi * r) + 1);
}

// The length of the vector of all gradients. engine: kernels/exact_sum.h:exact_add_square
double gradient_norm(Model& model) {
  double squares = 0;
  for (const Param* param : model.params())
    for (const real g : param->grad) squares += double(g) * g;
  return std::sqrt(squares);
}

// AdamW (Kingma, Ba 2015; Loshchilov, Hutter 2019), after scaling the gradient to a norm of at most kClip:
//   m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2,
//   weight -= lr (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + decay weight).
// m and v start at 0; the powers correct that. An element moves by about lr, however large its gradient is. Matrices
// decay; biases and norms do not. engine: kernels/cpu/optimizer.cc:update, kernels/step_ops.h:constants_of
void update(Model& model, int step, double norm) {
  const double lr = learning_rate(step);
  const real clip = real(std::min(1.0, kClip / (norm + 1e-6)));
  const real beta1 = real(kBeta1), beta2 = real(kBeta2);
  const real step_size = real(lr / (1 - std::pow(kBeta1, step)));
  const real root_correction = real(1 / std::sqrt(1 - std::pow(kBeta2, step)));
  for (Param* param : model.params()) {
    const real decay = param->decays ? real(lr * kWeightDecay) : 0;
    for (size_t i = 0; i < param->weight.size(); ++i) {
      real &w = param->weight[i], &m = param->m[i], &v = param->v[i];
      const real g = param->grad[i] * clip;
      m = beta1 * m + (1 - beta1) * g;
      v = beta2 * v + (1 - beta2) * g * g;
      w -= step_size * m / (std::sqrt(v) * root_correction + real(kAdamEps)) + decay * w;
    }
  }
}

// ---- 6. training

struct Batch {
  Tokens tokens = Tokens(n), labels = Tokens(n);

  void read(Samples& samples, int64_t first_sample) {
    for (int i = 0; i < b; ++i) samples.read(first_sample + i, &tokens[i * s], &labels[i * s]);
  }
};

void zero_gradients(Model& model) {
  for (Param* param : model.params()) std::fill(param->grad.begin(), param->grad.end(), real(0));
}

// engine: engine/train/trainer.cc:Trainer::queue_step
void train(Model& model, Samples& samples, int steps) {
  Batch batch;
  std::printf("%6s %12s %10s %14s %12s\n", "step", "loss", "grad norm", "learning rate", "tokens/s");
  for (int step = 1; step <= steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    double loss = 0;
    zero_gradients(model);
    for (int i = 0; i < micro_batches; ++i) {
      batch.read(samples, (int64_t(step - 1) * micro_batches + i) * b);
      loss += model.forward(batch.tokens, batch.labels, 1.0 / kTokens);
      model.backward(batch.tokens, batch.labels, 1.0 / kTokens);
    }
    const double norm = gradient_norm(model);
    update(model, step, norm);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%6d %12.6f %10.6f %14.4e %12.0f\n", step, loss, norm, learning_rate(step), kTokens / seconds.count());
  }
}

// Is the backward pass the derivative of the forward pass? All elements of a parameter are moved along a direction u of
// random signs, by +e and by -e: the loss must change by 2 e (grad · u). The error has terms of e^2, and the rounding
// of the losses divided by 2 e; so fp32 needs a large e, and double a small one.
void check_gradients(Model& model, Samples& samples) {
  const real e = sizeof(real) == sizeof(float) ? real(1e-3) : real(1e-6);
  Batch batch;
  batch.read(samples, 0);
  const auto loss = [&] { return model.forward(batch.tokens, batch.labels, 1.0 / n); };
  loss();
  model.backward(batch.tokens, batch.labels, 1.0 / n);
  std::printf("%-50s %12s %12s %9s\n", "parameter", "grad . u", "difference", "error");
  for (Param* param : model.params()) {
    const Vector before = param->weight;
    Vector u(before.size());
    for (size_t i = 0; i < u.size(); ++i) u[i] = philox(i / 4, 0, kSeed)[i % 4] % 2 == 0 ? 1 : -1;
    const auto loss_at = [&](real distance) {
      for (size_t i = 0; i < u.size(); ++i) param->weight[i] = before[i] + distance * u[i];
      return loss();
    };
    const double difference = (loss_at(e) - loss_at(-e)) / (2 * e);
    param->weight = before;
    const double slope = dot(u.size(), param->grad.data(), u.data());
    const double norm = std::sqrt(dot(u.size(), param->grad.data(), param->grad.data()));
    const double error = std::abs(difference - slope) / norm;
    std::printf("%-50s %12.8f %12.8f %9.1e\n", param->name.c_str(), slope, difference, error);
  }
}

// Draws P of each head of the last layer, for the first 32 positions of sample 0. A row is a query, named by its token,
// and a column a key; a darker character is a larger probability.
void draw_attention(Model& model, Samples& samples) {
  constexpr int kShown = std::min(s, 32);
  Batch batch;
  batch.read(samples, 0);
  model.forward(batch.tokens, batch.labels, 1.0 / n);
  for (int i = 0; i < kShown; ++i) {
    const int token = batch.tokens[i];
    std::printf("%c ", token > ' ' && token <= '~' ? token : '_');
    for (int head = 0; head < a; ++head) {
      const real* P = &model.acts[L - 1].probabilities[(head * s + i) * s];
      std::printf(" |");
      for (int j = 0; j < kShown; ++j) std::putchar(j > i ? ' ' : ".:-=+*#%@@@"[int(P[j] * 10)]);
    }
    std::printf(" |\n");
  }
}

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[2] : "";
  const bool checks = what == "check", draws = argc == 4 && std::string(argv[3]) == "draw";
  const int steps = std::atoi(what.c_str());
  if ((argc != 3 && !draws) || (!checks && steps < 1))
    fail("usage: one_rank DATA_PREFIX STEPS [draw], or one_rank DATA_PREFIX check");
  Model model;
  Samples samples{Corpus(argv[1])};
  if (checks) return check_gradients(model, samples), 0;
  train(model, samples, steps);
  if (draws) draw_attention(model, samples);
}
