// Layouts agree at realistic widths, on a few tokens and the tiny dataset's vocabulary: layers of GPT-2 124M, and a
// quarter of a Llama 3.1 8B layer, in which a rank at t = 2 has the same number of heads and feed-forward columns as a
// rank of the whole layer at t = 8. (The whole layer takes 28 s and 4 GB.)
#include <gtest/gtest.h>

#include "tests/support/training.h"

namespace trivet::test {
namespace {

Config of_width(Config config, const std::vector<std::pair<const char*, const char*>>& keys) {
  for (const auto& [key, value] : keys) set_key(config, key, value);
  config.optimizer.min_lr = 0;
  config.batch.micro_batch_size = 1;
  return config;
}

void expect_layouts_agree(const Config& config, const std::vector<Cut>& cuts) {
  if (kMatrixStride > 1) GTEST_SKIP() << "small widths show a sanitizer the same";
  // The validation loss after the step shows the step's effect on the weights.
  constexpr int kSteps = 1;
  const Curve reference = train_on_threads(config, 1, kSteps);
  for (const Cut& how : cuts)
    expect_near(train_on_threads(cut(config, how), how.ranks(), kSteps), reference,
                "t " + std::to_string(how.t) + ", p " + std::to_string(how.p) + ", d " + std::to_string(how.d));
}

TEST(Widths, LayoutsAgreeOnALayerOfGpt2) {
  const Config config = of_width(tiny_config(), {{"batch.global_batch_size", "4"},
                                                 {"model.num_layers", "2"},
                                                 {"model.hidden_size", "768"},
                                                 {"model.ffn_hidden_size", "3072"},
                                                 {"model.num_attention_heads", "12"},
                                                 {"optimizer.lr", "1e-4"}});
  expect_layouts_agree(config, {{.t = 2, .sequence_parallel = true}, {.p = 2, .d = 2, .strategy = "optim"}});
}

TEST(Widths, LayoutsAgreeOnARanksPartOfLlama8B) {
  Config llama = tiny_config();
  as_llama(llama);
  const Config config = of_width(llama, {{"batch.global_batch_size", "1"},
                                         {"model.num_layers", "1"},
                                         {"model.hidden_size", "4096"},
                                         {"model.ffn_hidden_size", "3584"},
                                         {"model.num_attention_heads", "8"},
                                         {"model.num_query_groups", "2"},
                                         {"model.kv_channels", "128"},
                                         {"optimizer.lr", "1e-5"}});
  expect_layouts_agree(config, {{.t = 2, .sequence_parallel = true}});
}

}  // namespace
}  // namespace trivet::test
