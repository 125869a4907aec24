// Sample and token counts beyond 32 bits: the data, the schedules by samples, and a run that resumes at such counts.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <numbers>

#include "engine/checkpoint/store.h"
#include "engine/config/batch_sizes.h"
#include "engine/data/prefetch.h"
#include "engine/data/shuffle.h"
#include "engine/train/lr_schedule.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

constexpr int64_t kLate[] = {(int64_t{1} << 31) - 3, (int64_t{1} << 32) + 1, (int64_t{1} << 33) + 12345,
                             (int64_t{1} << 40) + 7};

// The definition, by hand: concatenated epochs of shuffled documents, split into windows of s + 1 tokens that overlap
// by one and are shuffled among those that begin in the same epoch.
class Definition {
 public:
  Definition(const IndexedDataset& data, int64_t s, uint64_t seed) : data_(data), s_(s), seed_(seed) {}

  std::vector<int32_t> sample(int64_t index) {
    const int64_t epoch = index * s_ / data_.tokens(), first = first_window(epoch);
    const auto windows = static_cast<uint32_t>(first_window(epoch + 1) - first);
    const int64_t window =
        first + permutation(windows, seed_, 2 * static_cast<uint64_t>(epoch) + 1)[static_cast<size_t>(index - first)];
    std::vector<int32_t> tokens;
    for (int64_t at = window * s_; at <= (window + 1) * s_; ++at)
      tokens.push_back(stream(at / data_.tokens())[static_cast<size_t>(at % data_.tokens())]);
    return tokens;
  }

 private:
  int64_t first_window(int64_t epoch) const { return (epoch * data_.tokens() + s_ - 1) / s_; }
  const std::vector<int32_t>& stream(int64_t epoch) {
    std::vector<int32_t>& tokens = streams_[epoch];
    if (!tokens.empty()) return tokens;
    for (const uint32_t document :
         permutation(static_cast<uint32_t>(data_.sequences()), seed_, 2 * static_cast<uint64_t>(epoch))) {
      std::vector<int32_t> part(static_cast<size_t>(data_.length(document)));
      data_.read(data_.begin(document), part);
      tokens.insert(tokens.end(), part.begin(), part.end());
    }
    return tokens;
  }

  const IndexedDataset& data_;
  const int64_t s_;
  const uint64_t seed_;
  std::map<int64_t, std::vector<int32_t>> streams_;
};

TEST(LateSamples, AreThoseOfTheDefinition) {
  const auto dataset = tiny_dataset();
  const GptDataset data(dataset, {0, dataset->sequences()}, {"train", 16, 61, 42});
  Definition definition(*dataset, 16, 42);
  for (const int64_t first : kLate) {
    // The loader of the second of two ranks, resumed at `first`.
    BatchLoader loader(data, {.micro_batch_size = 2, .micro_batches = 3, .rank = 1, .ranks = 2}, 1);
    loader.restart(first);
    for (int64_t k = 0; k < 4; ++k) {
      const Batch& batch = loader.next();
      ASSERT_EQ(batch.first_sample, first + 4 * k + 2);
      for (int64_t column = 0; column < 2; ++column) {
        const std::vector<int32_t> expected = definition.sample(batch.first_sample + column);
        for (size_t i = 0; i < 16; ++i) {
          ASSERT_EQ(batch.tokens[2 * i + static_cast<size_t>(column)], expected[i]) << first;
          ASSERT_EQ(batch.labels[2 * i + static_cast<size_t>(column)], expected[i + 1]) << first;
        }
      }
    }
  }
}

TEST(LateSamples, HaveTheRatesOfTheSchedules) {
  Config config;
  const int64_t last = int64_t{1} << 41;
  config.train.train_samples = last;
  OptimizerConfig& o = config.optimizer;
  o = {.lr = 3, .min_lr = 1, .weight_decay = 0.1, .start_weight_decay = 0.1, .end_weight_decay = 0.5};
  o.weight_decay_incr_style = Ramp::linear;
  o.lr_warmup_samples = 1000;
  o.lr_decay_samples = last;
  for (const int64_t at : kLate) {
    const double r = static_cast<double>(at - 1000) / static_cast<double>(last - 1000);
    o.lr_decay_style = LrDecay::linear;
    EXPECT_NEAR(learning_rates(config, 1, at).all, 3 - 2 * r, 1e-13) << at;
    o.lr_decay_style = LrDecay::cosine;
    EXPECT_NEAR(learning_rates(config, 1, at).all, 2 + std::cos(std::numbers::pi * r), 1e-13) << at;
    EXPECT_NEAR(weight_decay(config, 1, at), 0.1 + 0.4 * static_cast<double>(at) / static_cast<double>(last), 1e-13);
    // The warm-up may be that long, too.
    o.lr_warmup_samples = at + 3;
    EXPECT_NEAR(learning_rates(config, 1, at + 1).all, 3 - 6 / static_cast<double>(at + 3), 1e-13) << at;
    o.lr_warmup_samples = 1000;
  }
}

TEST(LateSamples, HaveTheBatchSizesOfTheSchedule) {
  // The batch grows at 9.77e9 samples of 2,048 tokens.
  const auto sizes = parse_batch_size_schedule("0:1024 20T:2048", 2048);
  ASSERT_TRUE(sizes);
  const int64_t from = 20'000'000'000'000 / 2048, steps = (from + 1023) / 1024;
  EXPECT_EQ(sizes->of_step(from - 1), 1024);
  EXPECT_EQ(sizes->of_step(from), 2048);
  EXPECT_EQ(sizes->samples_of(steps + 5), steps * 1024 + 5 * 2048);
  EXPECT_EQ(sizes->steps_within(steps * 1024 + 5 * 2048), steps + 5);
  EXPECT_EQ(sizes->steps_within(steps * 1024 + 5 * 2048 - 1), steps + 4);
}

std::vector<std::byte> weights_of(Trainer& trainer) {
  std::vector<std::byte> all;
  for (const Param& param : trainer.state().params.all()) {
    const std::vector<std::byte> bytes = bytes_of(trainer, param.weight);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

// The update uses the schedules' values at its samples: bit for bit as in a run in which they are constant.
TEST(LateSamples, AreUpdatedByTheirRateAndDecay) {
  const int64_t last = int64_t{1} << 34;
  for (const int64_t at : kLate) {
    if (at >= last) continue;
    Config config = tiny_config();
    config.train.train_iters = 0;
    config.train.train_samples = last;
    config.model.hidden_dropout = 0.1;
    OptimizerConfig& o = config.optimizer;
    o.lr_warmup_iters = 0;
    o.lr_decay_iters.reset();
    o.lr_warmup_samples = 1000;
    o.lr_decay_style = LrDecay::linear;
    o.weight_decay_incr_style = Ramp::linear;
    o.start_weight_decay = 0.1;
    o.end_weight_decay = 7;
    const Config scheduled = resolved(config, 1).config;
    const int64_t behind = at + 8;
    const auto step = [&](const Config& run) {
      std::vector<std::byte> weights;
      with_trainers(run, 1, [&](Trainer& trainer) {
        trainer.resume({.step = at / 8, .consumed_samples = at, .consumed_tokens = 16 * at});
        const StepResult result = trainer.step();
        EXPECT_EQ(result.step, at / 8 + 1);
        EXPECT_EQ(result.consumed_samples, behind);
        EXPECT_EQ(result.consumed_tokens, 16 * behind);
        EXPECT_EQ(result.learning_rate, learning_rates(scheduled, 1, behind).all);
        EXPECT_EQ(trainer.consumed_samples(), behind);
        weights = weights_of(trainer);
      });
      return weights;
    };
    const std::vector<std::byte> found = step(config);
    o.lr = learning_rates(scheduled, 1, behind).all;
    o.lr_decay_style = LrDecay::constant;
    o.min_lr.reset();
    o.weight_decay = weight_decay(scheduled, 1, behind);
    o.weight_decay_incr_style = Ramp::constant;
    o.start_weight_decay.reset();
    o.end_weight_decay.reset();
    o.lr_warmup_samples = 0;
    EXPECT_TRUE(found == step(config)) << at;
  }
}

}  // namespace
}  // namespace trivet::test
