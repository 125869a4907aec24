#include "engine/config/explain.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "engine/train/rank_state.h"
#include "tests/engine/config/config_text.h"

namespace trivet {
namespace {

std::string with_single_spaces(std::string text) {
  text.erase(std::unique(text.begin(), text.end(), [](char a, char b) { return a == ' ' && b == ' '; }), text.end());
  return text;
}

TEST(MemoryPlan, CountsWhatTheFlatBuffersHold) {
  // given: h = 8, f = 32, L = 2, s = 16, vocabulary 100 padded to 128; each tensor is padded to 64 elements by hand
  LoadedConfig loaded = load_good();
  const Layout layout = resolve(loaded, {});
  // 2 norms: 4 x 64; qkv: 192 + 64; projection: 64 + 64; fc1: 256 + 64; fc2: 256 + 64
  const int64_t layer = 4 * 64 + 256 + 128 + 320 + 320;
  const int64_t elements = 128 * 8 + 16 * 8 + 2 * layer + 2 * 64;
  const auto bytes_in = [&](DType dtype) {
    loaded.config.precision.dtype = dtype;
    std::vector<int64_t> bytes;
    for (const MemoryItem& item : plan_memory(loaded.config, layout, {}).items) bytes.push_back(item.bytes);
    bytes.resize(3);  // weights, gradients, optimizer
    return bytes;
  };
  // The gradient norm and the watched norm; a step's numbers; the results of three searches for non-finite numbers in
  // two buckets.
  const int64_t norm = 2 * (kExactSumBins * 8 + 4 + 4) + 7 * 4 + 3 * 2 * kNonFiniteNumbers * 8;
  EXPECT_EQ(bytes_in(DType::f32), (std::vector<int64_t>{4 * elements, 4 * elements, 8 * elements + norm}));
  EXPECT_EQ(bytes_in(DType::bf16), (std::vector<int64_t>{2 * elements, 4 * elements, 12 * elements + norm}));
  // The layers' matrices also in FP8, with one scale each; not if they are streamed.
  loaded.config.precision.fp8 = Fp8::hybrid;
  EXPECT_EQ(bytes_in(DType::bf16)[0], 2 * elements + 2 * (192 + 64 + 256 + 256 + 4 * 4));
  loaded.config.parallel.data_parallel_sharding_strategy = Sharding::optim_grads_params;
  const int64_t in_fp8 = bytes_in(DType::bf16)[0];
  loaded.config.precision.fp8 = Fp8::none;
  EXPECT_EQ(bytes_in(DType::bf16)[0], in_fp8);
}

TEST(MemoryPlan, TensorParallelRanksHoldTheirPart) {
  LoadedConfig loaded = load_good({"parallel.tensor_model_parallel_size=2",
                                   "model.untie_embeddings_and_output_weights=true", "model.ffn_hidden_size=40"});
  const Layout layout = resolve(loaded, {.world_size = 2});
  // vocabulary padded to 256, two embeddings of 128 rows per rank; qkv 96 -> 128 and 12 -> 64; fc1 160 -> 192 and 20 ->
  // 64
  const int64_t layer = 4 * 64 + (128 + 64) + (64 + 64) + (192 + 64) + (192 + 64);
  EXPECT_EQ(plan_memory(loaded.config, layout, {}).items[0].bytes, 4 * (2 * 128 * 8 + 16 * 8 + 2 * layer + 2 * 64));
}

TEST(Explain, ShowsEachValueWithItsOrigin) {
  LoadedConfig loaded = load_good({"train.seed=7"});
  resolve(loaded, {});
  const std::string text = with_single_spaces(render({describe_values(loaded)}));
  EXPECT_NE(text.find("\n hidden_size 8 run.yaml:3\n"), std::string::npos) << text;
  EXPECT_NE(text.find("derived: 4 * hidden_size\n"), std::string::npos);
  EXPECT_NE(text.find("\n seed 7 --set\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n dtype fp32 default\n"), std::string::npos) << text;
}

TEST(Explain, DescribesTheRun) {
  LoadedConfig loaded = load_good({"batch.micro_batch_size=2", "batch.global_batch_size=8"});
  const Layout layout = resolve(loaded, {.world_size = 2});
  const std::string text = render(describe_run(loaded.config, layout, {{{{"weights", 2048}, {"scratch", 512}}}}));
  EXPECT_EQ(text, R"(model
  shape                2 layers, hidden 8, ffn 32, 4 heads of 2, 16 positions
  block                LayerNorm, learned_absolute, GELU, with biases
  output layer         tied to the word embeddings
  dtype                fp32
  recompute            none
parameters
                       vocabulary 100  padded to 128
  word embeddings                 800          1,024
  position embeddings             128            128
  attention                       576            576
  MLP                           1,104          1,104
  norms                            80             80
  total                         2,688          2,912
layout
  ranks                2 = tensor 1 x pipeline 1 x data 2, in the order tp-dp-pp
  sequence parallel    no
  pipeline             none
  data parallel        no_shard, buckets of 40,000,000 elements, no overlap
work
  step                 8 samples = 2 data-parallel ranks x 2 micro-batches of 2
  tokens               128 per step, 1,280 in 10 steps
  model FLOPs          1.555200e+04 per token, 1.990656e+06 per step (convention: causal)
  checkpoints          none: with checkpoint.save_interval 0 the weights are lost when the run ends
memory per rank
  weights              2.00 KiB  2,048 bytes
  scratch                 512 B    512 bytes
  sum                  2.50 KiB  2,560 bytes
)");
}

TEST(Explain, SaysWhatALossInChunksSaves) {
  const auto loss_of = [](const std::vector<std::string>& sets) {
    std::vector<std::string> all{"batch.micro_batch_size=3"};
    all.insert(all.end(), sets.begin(), sets.end());
    LoadedConfig loaded = load_good(all);
    const Layout layout = resolve(loaded, {});
    const std::string text = with_single_spaces(render(describe_run(loaded.config, layout, {{{{"weights", 2048}}}})));
    const size_t begin = text.find("\n loss ");
    return begin == std::string::npos ? "" : text.substr(begin + 2, text.find('\n', begin + 1) - begin - 2);
  };
  EXPECT_EQ(loss_of({"model.cross_entropy_chunk_rows=7"}),
            "loss logits of 7 of a micro-batch's 48 tokens at a time: 3.50 KiB instead of 24.00 KiB");
  for (const char* whole : {"model.cross_entropy_chunk_rows=0", "model.cross_entropy_chunk_rows=48",
                            "model.cross_entropy_chunk_rows=auto", "train.seed=1"})
    EXPECT_EQ(loss_of({whole}), "") << whole;
}

// By the size of a micro-batch's logits: no chunks up to 1.75 GiB, else chunks of at most 512 MiB.
TEST(Explain, AutomaticChunksFollowTheBytesOfTheLogits) {
  const auto rows_of = [](std::vector<std::string> sets, int ranks = 1) {
    sets.insert(sets.begin(), {"model.seq_length=8192", "model.vocab_size=128256", "precision.dtype=bf16"});
    LoadedConfig loaded = load_good(sets);
    const Layout layout = resolve(loaded, {.world_size = ranks});
    EXPECT_FALSE(loaded.config.model.cross_entropy_chunk_rows) << "ids of studies hash what is not default";
    return cross_entropy_rows_of(loaded.config, layout);
  };
  EXPECT_EQ(rows_of({}), 2048);
  EXPECT_EQ(rows_of({"batch.micro_batch_size=3"}), 1536);
  EXPECT_EQ(rows_of({"precision.dtype=fp32", "batch.micro_batch_size=2"}), 1024);
  EXPECT_EQ(rows_of({"parallel.tensor_model_parallel_size=2"}, 2), 0);
  EXPECT_EQ(rows_of({"parallel.context_parallel_size=2"}, 2), 0);
  EXPECT_EQ(rows_of({"parallel.tensor_model_parallel_size=2", "batch.micro_batch_size=2"}, 2), 4096);
  EXPECT_EQ(rows_of({"parallel.pipeline_model_parallel_size=2", "overlap.defer_embedding_wgrad_compute=true"}, 2), 0);
}

TEST(Explain, DescribesARampOfBatches) {
  LoadedConfig loaded = load_good({"batch.global_batch_size=8", "batch.rampup_batch_size=2,2,20", "train.train_iters=0",
                                   "train.train_samples=100"});
  const Layout layout = resolve(loaded, {.world_size = 1});
  const std::string text = render(describe_run(loaded.config, layout, {{{{"weights", 2048}}}}));
  EXPECT_NE(text.find("; 2 at first, 4 sizes\n  tokens               32 to 128 per step, 1,504 in 16 steps"),
            std::string::npos)
      << text;
}

TEST(Explain, TellsHostMemoryFromTheDevices) {
  LoadedConfig loaded = load_good();
  const Layout layout = resolve(loaded, {});
  const MemoryPlan plan{{{"weights", 2048}, {"snapshot", 512, true}}};
  const auto shown = [&](const std::vector<MemoryPlan>& ranks) {
    const std::string text = render(describe_run(loaded.config, layout, ranks));
    return with_single_spaces(text.substr(text.find("memory per rank\n")));
  };
  EXPECT_EQ(shown({plan}),
            "memory per rank\n weights 2.00 KiB 2,048 bytes\n snapshot (host) 512 B 512 bytes\n"
            " device sum 2.00 KiB 2,048 bytes\n sum 2.50 KiB 2,560 bytes\n");
  EXPECT_EQ(shown({plan, plan}),
            "memory per rank\n pipeline rank weights snapshot (host) device sum sum\n"
            " 0 2.00 KiB 512 B 2.00 KiB 2.50 KiB\n 1 2.00 KiB 512 B 2.00 KiB 2.50 KiB\n");
}

TEST(Explain, NamesTheEmulatedLinks) {
  LoadedConfig loaded = load_good({"comm.link_latency_us=5", "comm.data_link_gbps=12.5", "comm.tensor_link_gbps=3",
                                   "comm.data_link_latency_us=0", "parallel.pipeline_model_parallel_size=2"});
  const Layout layout = resolve(loaded, {.world_size = 4});  // no tensor groups, hence no tensor link
  const std::string text = with_single_spaces(render(describe_run(loaded.config, layout, {{{{"weights", 2048}}}})));
  EXPECT_NE(text.find("\n emulated links pipeline 5 us, data 12.5 Gbit/s\n"), std::string::npos) << text;
  LoadedConfig shared =
      load_good({"comm.link_gbps=3", "parallel.pipeline_model_parallel_size=2", "comm.shared_port=true"});
  const Layout same = resolve(shared, {.world_size = 4});
  EXPECT_NE(with_single_spaces(render(describe_run(shared.config, same, {{{{"weights", 2048}}}})))
                .find("\n emulated links pipeline 3 Gbit/s, data 3 Gbit/s, through one port\n"),
            std::string::npos);
}

TEST(Explain, ListsEveryKey) {
  const std::string text = with_single_spaces(render({describe_keys()}));
  EXPECT_NE(text.find("hidden_size required"), std::string::npos) << text;
  EXPECT_NE(text.find("an integer from 1 to 4000000, or auto (columns)"), std::string::npos);
  EXPECT_NE(text.find("one of default, none, ring, pipeline"), std::string::npos);
  EXPECT_NE(text.find("core_attn, layernorm or mlp, or several separated by commas"), std::string::npos);
  EXPECT_NE(text.find("one of cosine, linear, constant"), std::string::npos);
}

TEST(Explain, SaysWhatIsInFp8) {
  const auto text_of = [](std::vector<std::string> sets) {
    sets.insert(sets.begin(), {"model.num_layers=4", "precision.dtype=bf16"});
    LoadedConfig loaded = load_good(sets);
    const Layout layout = resolve(loaded, {});
    return render(describe_run(loaded.config, layout, {{{{"weights", 2048}}}}));
  };
  EXPECT_EQ(text_of({}).find("FP8"), std::string::npos);
  EXPECT_NE(text_of({"precision.fp8=hybrid"}).find("linear layers of 4 layers in FP8 (hybrid)\n"), std::string::npos);
  EXPECT_NE(text_of({"precision.fp8=e4m3", "precision.fp8_recipe=blockwise"}).find("in FP8 (e4m3, block scales)\n"),
            std::string::npos);
  EXPECT_NE(text_of({"precision.fp8=e4m3", "precision.first_last_layers_bf16=true", "precision.fp8_wgrad=false"})
                .find("linear layers of 2 layers in FP8 (e4m3), except weight gradients\n"),
            std::string::npos);
}

}  // namespace
}  // namespace trivet
