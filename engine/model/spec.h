// ModelSpec: the sizes of a model and the kinds of its parts, independent of layout and rank. The layers built from it
// declare everything else (modules.h): parameters, FLOPs, and the tensors of checkpoints and of other formats.
#pragma once

#include <cstdint>

#include "base/words.h"
#include "kernels/activation.h"
#include "kernels/rotary.h"

namespace trivet {

enum class Norm : uint8_t { layernorm, rmsnorm };
enum class Positions : uint8_t { learned, rope };
constexpr auto words_of(Norm) { return word_list("LayerNorm", "RMSNorm"); }  // as spelled in configurations
constexpr auto words_of(Positions) { return word_list("learned_absolute", "rope"); }

struct AttentionSpec {
  int64_t heads = 0;       // query heads
  int64_t kv_heads = 0;    // key/value heads; each serves heads / kv_heads query heads
  int64_t head_width = 0;  // d_head
  int64_t width() const { return heads * head_width; }
  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_width; }
  bool operator==(const AttentionSpec&) const = default;
};

struct ModelSpec {
  int64_t num_layers = 0, hidden = 0, ffn = 0, seq = 0;
  int64_t vocab = 0;  // without padding
  AttentionSpec attention{};
  Norm norm = Norm::layernorm;
  double norm_epsilon = 1e-5;  // added to the variance, or to the mean square
  Activation activation = Activation::gelu;
  Positions positions = Positions::learned;
  Rotary rotary{};              // for rope
  bool biases = true;           // in the linear layers of blocks
  bool qkv_bias = true;         // on queries, keys and values
  bool qk_norm = false;         // each head of queries and keys is normalised before RoPE
  bool tied_embeddings = true;  // the output layer's weight is the word embedding's
  // Initialisation and dropout, which do not change what a trained model computes.
  struct Training {
    float hidden_dropout = 0, attention_dropout = 0;
    float init_std = 0.02f;
    bool scale_output_layer_init = true;
    bool operator==(const Training&) const = default;
  } training{};
  bool operator==(const ModelSpec&) const = default;

  bool gated() const { return is_gated(activation); }  // fc1 outputs ffn gate columns, then ffn up columns
  ModelSpec with_vocab(int64_t n) const {
    ModelSpec spec = *this;
    spec.vocab = n;
    return spec;
  }
  // True if both have the same tensors and compute the same results from them, so checkpoints are interchangeable.
  bool same_model(ModelSpec other) const {
    other.training = training;
    return other == *this;
  }
};

// Throws ConfigError for inconsistent sizes, and for features that the layers do not support.
void expect_runs(const ModelSpec& spec);

}  // namespace trivet
