// Checkpoints in every format version ever written (tests/golden/checkpoint_MAJOR.MINOR) are loaded, and training
// continues from them, as CHANGELOG.md promises.
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/checkpoint/manifest.h"
#include "engine/config/load.h"
#include "tests/engine/checkpoint/runs.h"
#include "tests/support/temp_dir.h"
#include "tests/support/where.h"

namespace trivet::test {
namespace {

// Never changed: the checkpoints are of this model, after four steps on two ranks.
Config run_of_the_formats(const std::string& run_dir) {
  Config config = small_run(run_dir);
  config.model.num_layers = 1;
  config.model.hidden_size = 16;
  config.model.ffn_hidden_size = 32;
  config.model.num_attention_heads = 2;
  return config;
}

TEST(OldFormats, AreLoadedAndTrainedOn) {
  const TempDir dir;
  Config config = run_of_the_formats(dir / "straight");
  config.checkpoint.save_interval = 4;
  config.train.train_iters = 8;
  const RunResult straight = run(config, 2);
  ASSERT_EQ(straight.losses.size(), 8u) << straight.output;

  // This version's format has its folder. To add one, run this test with TRIVET_MAKE_GOLDEN=1; commit the folder.
  const std::string now = source_path(fmt::format("tests/golden/checkpoint_{}.{}", Manifest::kMajor, Manifest::kMinor));
  if (std::getenv("TRIVET_MAKE_GOLDEN"))
    std::filesystem::copy(dir / "straight/checkpoints/step-00000004", now, std::filesystem::copy_options::recursive);
  ASSERT_TRUE(std::filesystem::exists(now)) << now;

  for (const auto& folder : std::filesystem::directory_iterator(source_path("tests/golden"))) {
    const std::string name = folder.path().filename().string();
    if (!name.starts_with("checkpoint_")) continue;
    EXPECT_EQ(load_config(folder.path().string() + "/config.resolved.yaml").config.model.num_layers, 1) << name;
    config.train.run_dir = dir / name;
    RunOptions options;
    options.resume = folder.path().string();
    const RunResult resumed = run(config, 2, options);
    ASSERT_EQ(resumed.exit_code, 0) << name << resumed.output;
    ASSERT_EQ(resumed.first_step, 5) << name;
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(resumed.losses[i], straight.losses[4 + i], 1e-4) << name << " " << i;
  }
}

}  // namespace
}  // namespace trivet::test
