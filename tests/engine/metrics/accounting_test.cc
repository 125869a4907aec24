#include "engine/metrics/accounting.h"

#include <cmath>
#include <gtest/gtest.h>

#include "base/check.h"
#include "engine/model/modules.h"

namespace trivet {
namespace {

ModelSpec gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t seq, int64_t vocab) {
  return {.num_layers = layers,
          .hidden = hidden,
          .ffn = 4 * hidden,
          .seq = seq,
          .vocab = vocab,
          .attention = {.heads = heads, .kv_heads = heads, .head_width = hidden / heads}};
}

TEST(Parameters, OfGpt2) {
  ModelSpec model = gpt(12, 768, 12, 1024, 50257);
  EXPECT_EQ(count_parameters(model).total(), 124'439'808);
  model.tied_embeddings = false;
  EXPECT_EQ(count_parameters(model).total(), 124'439'808 + 50257 * 768);
  EXPECT_EQ(count_parameters(gpt(48, 1600, 25, 1024, 50257)).total(), 1'557'611'200);  // GPT-2 XL
}

TEST(Parameters, ByPartWithAnFfnOfItsOwn) {
  ModelSpec model = gpt(3, 16, 2, 10, 7);
  model.ffn = 40;
  const ParameterCount count = count_parameters(model);
  EXPECT_EQ(count[ModelPart::word_embeddings], 7 * 16);
  EXPECT_EQ(count[ModelPart::position_embeddings], 10 * 16);
  EXPECT_EQ(count[ModelPart::attention], 3 * (4 * 16 * 16 + 4 * 16));
  EXPECT_EQ(count[ModelPart::mlp], 3 * (2 * 16 * 40 + 40 + 16));
  EXPECT_EQ(count[ModelPart::norms], 3 * 4 * 16 + 2 * 16);
  EXPECT_EQ(count[ModelPart::output_layer], 0);
  EXPECT_EQ(count.total(), 3 * (4 * 256 + 2 * 640 + 9 * 16 + 40) + 32 + 160 + 112);
}

TEST(Parameters, OfNarayananEtAl2021) {
  // P of the paper's equation (2), which leaves out the final norm, for the rows of its table 1.
  const auto billions = [](int64_t layers, int64_t hidden, int64_t heads) {
    const int64_t without_final_norm = count_parameters(gpt(layers, hidden, heads, 2048, 51200)).total() - 2 * hidden;
    return static_cast<double>(without_final_norm) / 1e9;
  };
  EXPECT_NEAR(billions(24, 2304, 24), 1.652, 5e-4);
  EXPECT_NEAR(billions(36, 4096, 32), 7.468, 5e-4);
  EXPECT_NEAR(billions(48, 8192, 64), 39.096, 5e-4);
  EXPECT_NEAR(billions(80, 12288, 96), 145.622, 5e-4);
  EXPECT_NEAR(billions(128, 25600, 160), 1008.039, 5e-4);
}

TEST(Parameters, TensorsComeInTheOrderOfTheForwardPass) {
  ModelSpec model = gpt(1, 4, 2, 3, 5);
  model.tied_embeddings = false;
  std::vector<int64_t> elements, cut;
  for (const ModelTensor& tensor : model_tensors(model)) {
    elements.push_back(tensor.param.global_shape.numel());
    if (tensor.param.placement[Axis::tp].kind == Placement::partitioned) cut.push_back(elements.back());
  }
  EXPECT_EQ(elements, (std::vector<int64_t>{20, 12, 4, 4, 48, 12, 16, 4, 4, 4, 64, 16, 64, 4, 4, 4, 20}));
  EXPECT_EQ(cut, (std::vector<int64_t>{20, 48, 12, 16, 64, 16, 64, 20}));
}

TEST(Flops, OfGpt3AToken) {
  const ModelSpec model = gpt(96, 12288, 96, 2048, 51200);
  EXPECT_NEAR(flops_per_token(model, FlopsConvention::causal).total(), 1.061947e12, 5e5);
  EXPECT_NEAR(flops_per_token(model, FlopsConvention::full).total(), 1.076443e12, 5e5);
  EXPECT_EQ(flops_per_token(model, FlopsConvention::six_n).total(),
            6.0 * static_cast<double>(count_parameters(model).total()));
}

TEST(Flops, ByHand) {
  ModelSpec model = gpt(2, 8, 4, 16, 100);
  model.ffn = 24;
  // forward multiply-adds per token: qkv 3 h h, projection h h, mlp 2 h f; scores and values 2 s h, half if causal
  const double layers = 2 * (4 * 64 + 2 * 8 * 24), attention = 2 * 2 * 16 * 8, logits = 8 * 100;
  const TokenFlops full = flops_per_token(model, FlopsConvention::full);
  const TokenFlops causal = flops_per_token(model, FlopsConvention::causal);
  EXPECT_EQ(full.layers, 6 * layers);
  EXPECT_EQ(full.attention, 6 * attention);
  EXPECT_EQ(full.logits, 6 * logits);
  EXPECT_EQ(causal.total(), 6 * (layers + attention / 2 + logits));
  EXPECT_EQ(flops_per_step(model, 5, FlopsConvention::full), 6 * (layers + attention + logits) * 5 * 16);
}

TEST(Flops, OfNarayananEtAl2021AndKorthikantiEtAl2022) {
  const auto step = [](int64_t layers, int64_t hidden, int64_t batch) {
    const TokenFlops token = flops_per_token(gpt(layers, hidden, 1, 2048, 51200), FlopsConvention::full);
    const double tokens = static_cast<double>(batch) * 2048;
    return TokenFlops{token.layers * tokens, token.attention * tokens, token.logits * tokens};
  };
  // Hardware FLOPs with every layer's forward pass run twice: four thirds of the layers' model FLOPs.
  const auto recomputed = [](const TokenFlops& f) { return 4.0 / 3.0 * (f.layers + f.attention) + f.logits; };
  EXPECT_NEAR(recomputed(step(24, 2304, 512)) / 1.54668e16, 1, 1e-5);
  EXPECT_NEAR(recomputed(step(36, 4096, 512)) / 6.71846e16, 1, 1e-5);
  EXPECT_NEAR(recomputed(step(48, 8192, 1536)) / 1.02123e18, 1, 1e-5);
  EXPECT_NEAR(recomputed(step(80, 12288, 2304)) / 5.64168e18, 1, 1e-5);
  EXPECT_NEAR(recomputed(step(128, 25600, 3072)) / 5.13905e19, 1, 1e-5);

  EXPECT_NEAR(step(48, 6144, 4).total() / 1.1436e15, 1, 1e-4);
  EXPECT_NEAR(step(96, 12288, 64).total() / 1.4109e17, 1, 1e-4);
  const TokenFlops f = step(48, 6144, 4);
  EXPECT_NEAR((f.total() + f.attention) / 1.2029e15, 1, 1e-4);  // the paper counts attention as recomputed
}

TEST(Mfu, IsTheShareOfThePeak) {
  EXPECT_DOUBLE_EQ(model_flops_utilisation(4e12, 2.0, 4, 1.0), 0.5);
  EXPECT_TRUE(std::isnan(model_flops_utilisation(1, 1, 1, std::nan(""))));
}

TEST(Peak, ByTheDriversName) {
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H100 80GB HBM3", "bf16"), 989.4);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H200", "bf16"), 989.4);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H200", "fp32"), 66.9);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H200", "fp8"), 1978.9);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H100 PCIe", "fp8"), 1513);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H200 NVL", "bf16"), 835.5);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H200 NVL", "fp8"), 1671);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA B200", "fp8"), 4500);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA B200", "bf16"), 2250);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA B200", "tf32"), 1125);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA B200", "fp32"), 75);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA GB200", "bf16"), 2500);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA GH200 480GB", "bf16"), 989.4);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H20", "bf16"), 148);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H800", "bf16"), 989.4);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H100 PCIe", "bf16"), 756);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H100 NVL", "tf32"), 417.5);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA A100-SXM4-80GB", "bf16"), 312);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA A100-PCIE-40GB", "tf32"), 156);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA A10", "bf16"), 125);
  for (const auto& [name, bf16, tf32] :
       {std::tuple("NVIDIA A800-SXM4-80GB", 312.0, 156.0), std::tuple("NVIDIA A30", 165.0, 82.0),
        std::tuple("NVIDIA A40", 149.7, 74.8), std::tuple("NVIDIA A10", 125.0, 62.5),
        std::tuple("NVIDIA RTX A6000", 154.8, 77.4), std::tuple("NVIDIA L40", 181.0, 90.5),
        std::tuple("NVIDIA L40S", 362.0, 183.0), std::tuple("NVIDIA GeForce RTX 4090", 165.2, 82.6),
        std::tuple("NVIDIA GeForce RTX 3090", 71.0, 35.6)}) {
    EXPECT_EQ(peak_tflops_by_name(name, "bf16"), bf16) << name;
    EXPECT_EQ(peak_tflops_by_name(name, "tf32"), tf32) << name;
  }
  EXPECT_EQ(peak_tflops_by_name("NVIDIA L4", "bf16"), 121);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA L40S", "bf16"), 362);
  EXPECT_EQ(peak_tflops_by_name("Tesla V100-SXM2-32GB", "fp32"), 15.7);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA GeForce RTX 4090", "bf16"), 165.2);

  EXPECT_EQ(peak_tflops_by_name("Tesla V100-SXM2-32GB", "bf16"), std::nullopt);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16"), std::nullopt);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"), std::nullopt);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA GeForce RTX 3090 Ti", "bf16"), std::nullopt);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H100 80GB HBM3", "fp16"), std::nullopt);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA A100-SXM4-80GB", "fp8"), std::nullopt);
  EXPECT_EQ(peak_tflops_by_name("NVIDIA H1000", "bf16"), std::nullopt);
  EXPECT_EQ(peak_tflops_by_name("", "bf16"), std::nullopt);
}

}  // namespace
}  // namespace trivet
