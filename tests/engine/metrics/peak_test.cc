// MFU above 100 %: a measured peak is measured again, a given one is explained.
#include <chrono>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sstream>
#include <thread>

#include "engine/train/run.h"
#include "parallel/comm/world.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

// Steps take no time, as nothing is computed; the GEMMs of the peak take `first`, and 20 ms from the fourth one on.
class NoWork : public Ops {
 public:
  NoWork(std::unique_ptr<Ops> ops, std::chrono::milliseconds first) : ops_(std::move(ops)), first_(first) {}
  void run(const AnyOp& any, Stream& stream) override {
    if (std::holds_alternative<op::Fill>(any)) return ops_->run(any, stream);
    const auto* matmul = std::get_if<op::Matmul>(&any);
    if (matmul && matmul->c.shape[0] >= 1024 && matmul->c.shape[1] >= 1024)  // larger than any of the steps
      std::this_thread::sleep_for(++gemms_ <= 3 ? first_ : std::chrono::milliseconds(20));
  }

 private:
  const std::unique_ptr<Ops> ops_;
  const std::chrono::milliseconds first_;
  int gemms_ = 0;
};

std::string output_of(Config config) {
  const TempDir dir;
  config.data.path = tiny_dataset_prefix();
  // 155 GFLOP a step: 0.7 s at the highest peak of these GEMMs, so that a busy machine's step is faster, too.
  config.batch = {.micro_batch_size = 32, .global_batch_size = 128};
  config.model.hidden_size = 512;
  config.model.ffn_hidden_size = 2048;
  config.train.train_iters = 4;
  config.optimizer.lr_decay_iters = 4;
  config.train.run_dir = dir / "run";
  config.train.check_for_nan_in_loss_and_grad = false;
  RunOptions options;
  options.make_backend = [](const Config& c, Communicator& world, int threads) {
    Backend backend = make_backend(c, world, threads);
    backend.ops = std::make_unique<NoWork>(std::move(backend.ops), std::chrono::milliseconds(260));
    return backend;
  };
  std::ostringstream out;
  run_thread_ranks(1, [&](Communicator& world) {
    run_training({.config = config, .origins = {}, .path = "test"}, options, world, out);
  });
  return out.str();
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Peak, IsMeasuredAgainAfterAStepThatWasFaster) {
  const std::string out = output_of(tiny_config());
  EXPECT_EQ(count(out, "step 1 was faster than the measured peak"), 1u) << out;
  EXPECT_EQ(count(out, "MFU above 100 %: step 1 made"), 1u) << out;
  EXPECT_EQ(count(out, "MFU above 100 %"), 1u) << out;
}

TEST(Peak, OfTheConfigurationIsExplained) {
  Config config = tiny_config();
  config.device.peak_tflops = 1e-9;
  const std::string out = output_of(config);
  EXPECT_EQ(count(out, "was faster than the measured peak"), 0u) << out;
  EXPECT_EQ(count(out, "(device.peak_tflops); expected a larger device.peak_tflops, or auto"), 1u) << out;
}

}  // namespace
}  // namespace trivet::test
