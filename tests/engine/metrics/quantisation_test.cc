#include "engine/metrics/quantisation.h"

#include <cmath>
#include <gtest/gtest.h>

#include "kernels/base/arena.h"
#include "parallel/comm/world.h"
#include "tests/engine/checkpoint/runs.h"
#include "tests/support/training.h"

namespace trivet {
namespace {

class QuantisationReportTest : public testing::Test {
 protected:
  Tensor of(const std::vector<float>& numbers, const Shape& shape) {
    const Tensor x = arena_.allocate(DType::f32, shape);
    std::copy(numbers.begin(), numbers.end(), x.as<float>());
    return x;
  }
  // Quantises x in layer `layer` of the model with this amax, or with block scales if it is 0.
  void quantise(int layer, const Tensor& x, float amax, op::Quantize::Role role, const Shape& scales = {1}) {
    stream_->label().first_unit = layer + 1;
    report_.run(op::Quantize{x, amax > 0 ? of({amax}, {1}) : Tensor(), arena_.allocate(DType::e4m3, x.shape),
                             arena_.allocate(DType::f32, scales), role},
                *stream_);
  }
  std::vector<std::vector<std::string>> rows() {
    std::vector<std::vector<std::string>> rows;
    run_thread_ranks(1, [&](Communicator& world) {
      HostWorld host(world);
      rows = report_.table({{.name = "embedding"}, {.name = "layer 0"}, {.name = "layer 1"}}, 2, host).rows;
    });
    return rows;
  }

  std::unique_ptr<Device> device_ = create_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->create_compute_stream();
  Arena arena_{*device_, "quantised"};
  QuantisationReport report_{create_cpu_ops(1)};
};

TEST_F(QuantisationReportTest, TellsWhatBecameZeroWasCutOffAndIsNotWhatWasMeant) {
  quantise(1, of({448, 1e-4f, 0, 3.3f}, {2, 2}), 448, op::Quantize::activation);  // 3.3 becomes 3.25
  quantise(1, of({448, 100, 0, 0}, {2, 2}), 1, op::Quantize::weight);             // as if the largest were 1: 1.75
  quantise(0, of({NAN, 1}, {1, 2}), 1, op::Quantize::gradient);
  quantise(1, of({INFINITY, 1e-9f}, {1, 2}), INFINITY, op::Quantize::gradient);  // does not count
  quantise(0, of({0, 0}, {1, 2}), 1, op::Quantize::weight);
  quantise(-2, of({1e-9f, 1}, {1, 2}), 1, op::Quantize::gradient);  // in no unit: a deferred weight gradient
  std::vector<float> blocks(256, 1);
  blocks[128] = 448, blocks[129] = 1e-4f;  // in the second block
  quantise(0, of(blocks, {1, 256}), 0, op::Quantize::activation, {1, 1, 2});
  const auto percent = [](double x) { return fmt::format("{:.3g}%", 100 * x); };
  const double far = std::hypot(448 - 1.75, 100 - 1.75) / std::hypot(448, 100);
  EXPECT_EQ(rows(),
            (std::vector<std::vector<std::string>>{
                {"", "became zero", "cut off", "error"},
                {"layer 0 weights", "0%", "0%", "-"},
                {"layer 0 activations", percent(1 / 256.0), "0%", percent(1e-4 / std::hypot(448, std::sqrt(254)))},
                {"layer 0 gradients", "0%", "0%", "0%"},
                {"layer 1 weights", "0%", "50%", percent(far)},
                {"layer 1 activations", "25%", "0%", percent(0.05 / std::hypot(448, 3.3))}}));
}

// Whether a weight is quantised where it is used or, for the other data ranks, where it is owned.
TEST(QuantisationReportOfARun, HasAllRolesOfEachLayer) {
  const TempDir dir;
  for (const bool gathers : {false, true}) {
    SCOPED_TRACE(gathers);
    Config config = test::cut(test::small_run(dir / (gathers ? "gathered" : "used")), {.d = 2, .strategy = "optim"});
    config.precision.dtype = DType::bf16;
    config.precision.fp8 = Fp8::hybrid;
    config.precision.fp8_report = true;
    config.precision.fp8_param_gather = gathers;
    config.train.train_iters = 1;
    const std::string output = test::run(config, 2).output;
    for (int64_t layer = 0; layer < config.model.num_layers; ++layer)
      for (const char* role : {"weights", "activations", "gradients"})
        EXPECT_NE(output.find(fmt::format("layer {} {}", layer, role)), std::string::npos) << role << output;
  }
}

}  // namespace
}  // namespace trivet
