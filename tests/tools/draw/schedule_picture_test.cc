#include "tools/draw/schedule_picture.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/support/training.h"

namespace trivet::test {
namespace {

TEST(SchedulePicture, DrawsTheRateAndTheBatchOfEachStep) {
  Config config = tiny_config();
  config.batch.rampup_batch_size = std::vector<int64_t>{4, 4, 12};
  config.optimizer.lr_warmup_iters = 0;
  config.optimizer.lr_decay_iters.reset();
  config.train.train_iters = 0;
  config.train.train_samples = 36;
  const Resolved run = resolved(config, 1);
  const std::string svg = schedule_picture(run.config, run.layout);
  EXPECT_NE(svg.find("of 6 steps"), std::string::npos);
  const size_t batches = svg.find("<path", svg.find("<path") + 1);
  ASSERT_NE(batches, std::string::npos);
  // Three steps at half the height of the three that follow.
  const std::string path = svg.substr(batches, svg.find("/>", batches) - batches);
  std::vector<std::string> heights;
  for (size_t at = path.find(' ', path.find(" d=") + 1); at != path.npos; at = path.find(' ', at + 1))
    heights.push_back(path.substr(at + 1, path.find_first_of("L\"", at) - at - 1));
  EXPECT_EQ(heights, (std::vector<std::string>{"325.0", "325.0", "325.0", "250.0", "250.0", "250.0"})) << path;
}

}  // namespace
}  // namespace trivet::test
