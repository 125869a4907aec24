// A step that is faster than the peak: a measured peak is measured again and, if still too low, becomes the step's own
// rate; a configured one is reported. No row has an MFU above 100 %.
#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "engine/train/run.h"
#include "parallel/comm/world.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

using Delay = std::function<std::chrono::milliseconds(int gemm)>;

// The first GEMM of each of the three sizes takes 260 ms, later ones `later` ms.
Delay at_first_slow(int later) {
  return [=](int gemm) { return std::chrono::milliseconds(gemm <= 3 ? 260 : later); };
}

// Computes nothing, so steps take no time; the n-th GEMM of the peak's measurement takes delay(n).
class NoWork : public Ops {
 public:
  NoWork(std::unique_ptr<Ops> ops, Delay delay) : ops_(std::move(ops)), delay_(std::move(delay)) {}
  void run(const AnyOp& any, Stream& stream) override {
    if (std::holds_alternative<op::Fill>(any)) return ops_->run(any, stream);
    // Numbers that the host reads must be written.
    const auto set = [&](Tensor number, float value) { ops_->run(op::Fill{number, value}, stream); };
    if (const auto* clip = std::get_if<op::ClipScale>(&any)) {
      set(clip->norm, 1);
      set(clip->grad_scale, 1);
    }
    if (const auto* accept = std::get_if<op::AcceptStep>(&any)) set(accept->accepted, 1);
    const auto* matmul = std::get_if<op::Matmul>(&any);
    if (matmul && matmul->c.shape[0] >= 1024 && matmul->c.shape[1] >= 1024)  // larger than any GEMM of a step
      std::this_thread::sleep_for(delay_(++gemms_));
  }

 private:
  const std::unique_ptr<Ops> ops_;
  const Delay delay_;
  int gemms_ = 0;
};

// A CPU that claims to be an H100.
class CalledH100 : public Device {
 public:
  explicit CalledH100(std::unique_ptr<Device> cpu) : cpu_(std::move(cpu)) {}
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return "NVIDIA H100 80GB HBM3"; }
  int64_t memory_bytes() const override { return cpu_->memory_bytes(); }
  void* allocate(int64_t bytes) override { return cpu_->allocate(bytes); }
  void deallocate(void* data, int64_t bytes) noexcept override { cpu_->deallocate(data, bytes); }
  std::unique_ptr<Stream> create_compute_stream() override { return cpu_->create_compute_stream(); }
  std::unique_ptr<Stream> create_side_stream(StreamPriority priority) override {
    return cpu_->create_side_stream(priority);
  }
  std::unique_ptr<Event> create_event() override { return cpu_->create_event(); }
  void copy_to_device(const void* host, Tensor to, Stream& stream) override { cpu_->copy_to_device(host, to, stream); }
  void copy_to_host(Tensor from, void* host, Stream& stream) override { cpu_->copy_to_host(from, host, stream); }

 private:
  const std::unique_ptr<Device> cpu_;
};

struct Outcome {
  std::string text;
  std::vector<nlohmann::json> rows = {};  // from metrics.jsonl
  nlohmann::json start = {};
};

Outcome outcome_of(Config config, const Delay& delay, bool on_h100 = false) {
  const TempDir dir;
  config.data.path = tiny_dataset_prefix();
  config.batch = {.micro_batch_size = 32, .global_batch_size = 128};
  config.model.hidden_size = 512;
  config.model.ffn_hidden_size = 2048;
  config.train.train_iters = 4;
  config.optimizer.lr_decay_iters = 4;
  config.train.run_dir = dir / "run";
  config.train.check_for_nan_in_loss_and_grad = false;
  RunOptions options;
  options.make_backend = [&](const Config& c, Communicator& world, int threads) {
    Backend backend = make_backend(c, world, threads);
    backend.ops = std::make_unique<NoWork>(std::move(backend.ops), delay);
    if (on_h100) backend.device = std::make_unique<CalledH100>(std::move(backend.device));
    return backend;
  };
  std::ostringstream out;
  run_thread_ranks(1, [&](Communicator& world) {
    run_training({.config = config, .origins = {}, .path = "test"}, options, world, out);
  });
  Outcome outcome{out.str()};
  std::ifstream file(config.train.run_dir + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);)
    if (nlohmann::json row = nlohmann::json::parse(line); row.contains("mfu")) outcome.rows.push_back(row);
    else if (row["event"] == "start") outcome.start = row;
  EXPECT_EQ(outcome.rows.size(), 4u);
  return outcome;
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// A multiply-add counts as two operations: the time of the first of three GEMMs gives bounds for the peak.
TEST(Peak, CountsMultiplicationsAndAdditions) {
  const auto device = create_cpu_device();
  NoWork ops(create_cpu_ops(1), [](int) { return std::chrono::milliseconds(260); });
  const int64_t begin = now_ns();
  const GemmPeak peak = measure_gemm_peak(*device, ops, DType::f32);
  const double all = static_cast<double>(now_ns() - begin) * 1e-9 - 2 * 0.26;  // the other two took at least that
  EXPECT_LE(peak.tflops * 1e12, 2 * 2048. * 1024 * 1024 / 0.26);
  EXPECT_GE(peak.tflops * 1e12, 2 * 2048. * 1024 * 1024 / all);
}

TEST(Peak, IsMeasuredAgainAndTheStepIsJudgedByTheNewOne) {
  // A million GEMMs that take no time reach a peak that no step can.
  const auto [text, rows, start] = outcome_of(tiny_config(), at_first_slow(0));
  EXPECT_EQ(count(text, "step 1 made"), 1u) << text;
  EXPECT_EQ(count(text, "measured again"), 1u) << text;
  for (const auto& row : rows) {
    EXPECT_LT(row["mfu"], 1) << row;
    EXPECT_NEAR(row["mfu"].get<double>() / row["model_tflops_per_rank"].get<double>(),
                rows[0]["mfu"].get<double>() / rows[0]["model_tflops_per_rank"].get<double>(), 1e-12)
        << "one peak for all rows";
  }
}

TEST(Peak, IsTheRateOfTheFastestStepWhereMeasuringDoesNotReachIt) {
  // 155 GFLOP per step: 0.7 s at the highest peak of these GEMMs, so even a busy machine's step is faster.
  const auto [text, rows, start] = outcome_of(tiny_config(), at_first_slow(20));
  EXPECT_EQ(count(text, "the peak is the rate of the fastest step"), 1u) << text;
  EXPECT_EQ(count(text, "step 1 made"), 2u) << text;
  EXPECT_EQ(rows[0]["mfu"], 1);
  double fastest = 0;
  for (const auto& row : rows) {
    fastest = std::max(fastest, row["model_tflops_per_rank"].get<double>());
    EXPECT_NEAR(row["mfu"], row["model_tflops_per_rank"].get<double>() / fastest, 1e-12);
  }
}

TEST(Peak, SaysHowFarItsRunsDiffer) {
  const std::string shared = "other work runs here, and MFU is uncertain to the same degree";
  const auto busy = [](int gemm) { return std::chrono::milliseconds(gemm % 3 == 0 ? 2 : 80); };  // one in three is fast
  EXPECT_EQ(count(outcome_of(tiny_config(), busy).text, shared), 1u);
  const std::string text = outcome_of(tiny_config(), at_first_slow(20)).text;
  EXPECT_EQ(count(text, "the median run reached 100.0%"), 1u) << text;
  EXPECT_EQ(count(text, shared), 0u) << text;
}

// An FP8 run is rated by the FP8 peak on a GPU and by the bf16 peak on a CPU, which decodes; the log names it.
TEST(Peak, OfARunInFp8IsNamed) {
  Config config = tiny_config();
  config.precision.dtype = DType::bf16;
  for (const auto& [fp8, peak, origin] :
       {std::tuple(Fp8::none, 989.4, "data sheet of NVIDIA H100 80GB HBM3, dense bf16"),
        {Fp8::hybrid, 1978.9, "data sheet of NVIDIA H100 80GB HBM3, dense fp8"}}) {
    config.precision.fp8 = fp8;
    const auto [text, rows, start] = outcome_of(config, at_first_slow(20), true);
    EXPECT_EQ(count(text, fmt::format("{:.3f} TFLOP/s: {}\n", peak, origin)), 1u) << text;
    EXPECT_EQ(start["peak_tflops"], peak);
    EXPECT_EQ(start["peak_origin"], origin);
    for (const auto& row : rows) {
      const double mfu = row["model_tflops_per_rank"].get<double>() / peak;
      EXPECT_EQ(row["mfu"].is_null(), mfu > 1);
      if (mfu <= 1) {
        EXPECT_NEAR(row["mfu"], mfu, 1e-12);
      }
    }
  }
  const Outcome on_cpu = outcome_of(config, at_first_slow(20));
  EXPECT_TRUE(on_cpu.start["peak_origin"].get<std::string>().starts_with("GEMMs in bf16 measured")) << on_cpu.text;
}

TEST(Peak, OfTheConfigurationIsExplained) {
  Config config = tiny_config();
  config.device.peak_tflops = 1e-9;
  const auto [text, rows, start] = outcome_of(config, at_first_slow(20));
  EXPECT_EQ(count(text, "measured again"), 0u) << text;
  EXPECT_EQ(count(text, "(device.peak_tflops): the MFU of such a step is unknown; expected a larger"), 1u) << text;
  for (const auto& row : rows) EXPECT_TRUE(row["mfu"].is_null()) << row;
}

}  // namespace
}  // namespace trivet::test
