// GPU telemetry, from a stand-in for NVML through to metrics.jsonl.
#ifdef TRIVET_EMULATED_GPU
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "kernels/base/device.h"
#include "kernels/gpu_monitor.h"
#include "tests/engine/checkpoint/runs.h"
#include "tests/support/where.h"

namespace trivet::test {
namespace {

// The program finds the first library that was loaded under the driver's name.
class GpuReports : public testing::Test {
 protected:
  void* library_ = dlopen(nvml_path().c_str(), RTLD_NOW);
  void set(const char* name, long long value) { *static_cast<long long*>(dlsym(library_, name)) = value; }
  void TearDown() override { set("nvml_reasons", 0), set("nvml_ecc_errors", -1); }
};

TEST_F(GpuReports, AMonitorReadsWhatTheGpuTells) {
  ASSERT_NE(library_, nullptr) << dlerror();
  const auto device = create_cuda_device(0);
  const auto monitor = create_gpu_monitor(*device);
  ASSERT_TRUE(monitor);
  const GpuReading first = monitor();
  EXPECT_EQ(first.sm_clock_mhz, 1755);
  EXPECT_EQ(first.pcie_lanes, 8);
  EXPECT_EQ(first.ecc_errors, -1) << "it does not tell";
  EXPECT_FALSE(first.slowed_by_power);
  EXPECT_FALSE(first.slowed_by_heat);
  // Throttle reasons, each bit alone: idle, application, synchronised and display clocks do not count as slowdowns.
  for (const auto& [bits, power, heat] : {std::tuple{0x1, 0, 0},
                                          {0x2, 0, 0},
                                          {0x4, 1, 0},
                                          {0x8, 0, 1},
                                          {0x10, 0, 0},
                                          {0x20, 0, 1},
                                          {0x40, 0, 1},
                                          {0x80, 1, 0},
                                          {0x100, 0, 0},
                                          {0xcc, 1, 1}}) {
    set("nvml_reasons", bits);
    const GpuReading reading = monitor();
    EXPECT_EQ(reading.slowed_by_power, power) << bits;
    EXPECT_EQ(reading.slowed_by_heat, heat) << bits;
  }
  set("nvml_ecc_errors", 3);
  EXPECT_EQ(monitor().ecc_errors, 3);
  EXPECT_FALSE(create_gpu_monitor(*create_cpu_device()));
}

// Steps of 4 samples of 8 tokens.
Config gpu_run(const std::string& run_dir, int64_t steps) {
  Config config = small_run(run_dir);
  config.model.seq_length = 8;
  config.batch = {.micro_batch_size = 1, .global_batch_size = 4};
  config.train.train_iters = steps;
  config.train.eval_interval = 0;
  config.device.kind = DeviceKind::cuda;
  return config;
}

TEST_F(GpuReports, OfARunAreInItsMetrics) {
  const TempDir dir;
  const Config config = gpu_run(dir / "run", 3);
  set("nvml_reasons", 0x4);
  run(config, 1);
  int steps = 0;
  for (const auto& record : records_of(dir / "run")) {
    if (record.contains("event")) continue;
    if (++steps == 1) continue;  // nothing to compare with yet
    // Half a joule between two reads, over 4 samples of 8 tokens.
    EXPECT_NEAR(record.at("energy_joules_per_token").get<double>(), 0.5 / 32, 1e-12);
    EXPECT_NEAR(record.at("power_watts").get<double>() * record.at("step_seconds").get<double>() / 0.5, 1, 0.5);
    EXPECT_EQ(record.at("sm_clock_mhz"), 1755);
    EXPECT_EQ(record.at("gpus_slowed_by_power"), 1);
    EXPECT_EQ(record.at("gpus_slowed_by_heat"), 0);
  }
  EXPECT_EQ(steps, 3);
}

// After ten steps, a GPU's energy is read every tenth step only: tokens and time are those since the last reading.
TEST_F(GpuReports, CountTheEnergyOfAllStepsOnce) {
  const TempDir dir;
  const Config config = gpu_run(dir / "run", 21);
  run(config, 1);
  int64_t read = 1;    // with nothing to compare with
  double seconds = 0;  // of the steps since
  std::vector<int64_t> readings;
  for (const auto& record : records_of(dir / "run")) {
    if (record.contains("event")) continue;
    const int64_t step = record.at("step");
    seconds += record.at("step_seconds").get<double>();
    if (!record.contains("energy_joules_per_token") || record.at("energy_joules_per_token").is_null()) continue;
    EXPECT_NEAR(record.at("energy_joules_per_token").get<double>() * static_cast<double>(32 * (step - read)), 0.5, 1e-9)
        << step;
    if (step > 10) {
      EXPECT_LE(record.at("power_watts").get<double>() * seconds, 0.5 * 1.01)
          << step;  // the steps are part of the time
    }
    readings.push_back(read = step);
    seconds = 0;
  }
  EXPECT_EQ(readings, (std::vector<int64_t>{2, 3, 4, 5, 6, 7, 8, 9, 10, 20}));
}

}  // namespace
}  // namespace trivet::test
#endif
