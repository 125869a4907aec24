#include "docs/course/exercises/mfu.h"

#include "docs/course/exercises/support/testing.h"
#include "engine/metrics/accounting.h"

namespace trivet::exercise {
namespace {

TEST(mfu, counts_as_the_engine_does) {
  for (const GptSizes& gpt : {GptSizes{12, 768, 12, 12, 3072, 1024, 50257},
                              GptSizes{96, 12288, 96, 96, 49152, 2048, 50257}, GptSizes{2, 96, 6, 2, 100, 4096, 777}}) {
    const ModelSpec model{
        .num_layers = gpt.layers,
        .hidden = gpt.hidden,
        .ffn = gpt.ffn,
        .seq = gpt.seq,
        .vocab = gpt.vocab,
        .attention = {.heads = gpt.heads, .kv_heads = gpt.kv_heads, .head_width = gpt.hidden / gpt.heads}};
    const TokenFlops engine = trivet::flops_per_token(model, FlopsConvention::causal);
    ASSERT_NEAR(flops_per_token(gpt) / engine.total(), 1, 1e-12)
        << "found " << flops_per_token(gpt) << ", expected " << engine.total() << ": linear layers " << engine.layers
        << ", attention " << engine.attention << ", logits " << engine.logits;
  }
}

TEST(mfu, divides_by_the_peak_of_all_gpus) {
  const GptSizes gpt2{12, 768, 12, 12, 3072, 1024, 50257};
  EXPECT_NEAR(mfu(gpt2, 4e6, 8, 989.4), 0.4032, 0.0001) << "GPT-2 at 4 million tokens per second on 8 H100";
}

}  // namespace
}  // namespace trivet::exercise
