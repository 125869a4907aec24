#include "engine/config/model_spec.h"

namespace trivet {

ModelSpec model_spec_of(const ModelConfig& c) {
  return {.num_layers = c.num_layers,
          .hidden = c.hidden_size,
          .ffn = c.ffn_hidden_size.value_or(4 * c.hidden_size),
          .seq = c.seq_length,
          .vocab = c.vocab_size.value_or(0),
          .attention = {.heads = c.num_attention_heads,
                        .kv_heads = c.num_attention_heads,
                        .head_width = c.hidden_size / c.num_attention_heads},
          .norm_epsilon = c.layernorm_epsilon,
          .tied_embeddings = !c.untie_embeddings_and_output_weights,
          .training = {.hidden_dropout = static_cast<float>(c.hidden_dropout),
                       .attention_dropout = static_cast<float>(c.attention_dropout),
                       .init_std = static_cast<float>(c.init_method_std),
                       .scale_output_layer_init = c.scale_output_layer_init}};
}

}  // namespace trivet
