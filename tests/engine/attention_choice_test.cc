// Who computes attention: what is asked for, what can be, and what was measured. The two ways are the CPU's here.
#include "engine/train/attention_choice.h"

#include <gtest/gtest.h>

#include "engine/train/backend.h"
#include "parallel/comm/world.h"
#include "tests/support/training.h"

namespace trivet {
namespace {

std::unique_ptr<Ops> both(const std::optional<AttentionShape>&) { return create_cpu_ops(1); }
std::unique_ptr<Ops> own_only(const std::optional<AttentionShape>& cudnn) {
  if (cudnn) throw ConfigError("this build has no cuDNN");
  return create_cpu_ops(1);
}

class AttentionChoiceTest : public testing::Test {
 protected:
  // One rank's.
  struct Found {
    AttentionTrial trial;
    AttentionChoice choice;
    bool measured() const { return trial.own_ns > 0 && trial.cudnn_ns > 0; }
  };
  Found choose(const MakeOps& make_ops) {
    Found found;
    run_thread_ranks(1, [&](Communicator& world) {
      HostWorld host(world);
      const auto device = create_cpu_device();
      found.trial = try_attention(config, *device, make_ops);
      found.choice = choose_attention(found.trial, host);
    });
    return found;
  }
  Config config = test::tiny_config();
};

TEST_F(AttentionChoiceTest, TheShapeIsThatOfAMicroBatchOnOneTensorParallelRank) {
  config.parallel.tensor_model_parallel_size = 2;
  EXPECT_EQ(attention_shape_of(config), packed_attention(16, 2, 2, 2, 8, DType::f32));
  test::as_llama(config);
  config.model.kv_channels = 6;
  EXPECT_EQ(attention_shape_of(config), packed_attention(16, 2, 4, 2, 6, DType::f32));
}

TEST_F(AttentionChoiceTest, AutoMeasuresBothAndTakesTheFaster) {
  const Found found = choose(both);
  EXPECT_TRUE(found.measured());
  EXPECT_EQ(found.choice.cudnn, found.trial.cudnn_ns < found.trial.own_ns);
}

TEST_F(AttentionChoiceTest, WhatCannotBeIsNotChosenAndSaysWhy) {
  const Found found = choose(own_only);
  EXPECT_FALSE(found.choice.cudnn);
  EXPECT_FALSE(found.measured());
  EXPECT_EQ(found.choice.name, "own kernels: this build has no cuDNN");
}

TEST_F(AttentionChoiceTest, NothingIsMeasuredInDeterministicModeNorWithDropout) {
  const auto expect_own = [&](const std::string& name) {
    const Found found = choose(both);
    EXPECT_FALSE(found.choice.cudnn);
    EXPECT_FALSE(found.measured());
    EXPECT_EQ(found.choice.name, name);
  };
  config.train.deterministic_mode = true;
  expect_own("own kernels: deterministic_mode measures nothing");
  config.train.deterministic_mode = false;
  config.model.attention_dropout = 0.1;
  expect_own("own kernels: cuDNN does not have the dropout of attention_dropout");
}

TEST_F(AttentionChoiceTest, WhatIsAskedForIsTakenOrAnError) {
  config.model.attention_backend = AttentionBackend::flash;
  EXPECT_FALSE(choose(both).choice.cudnn);
  EXPECT_EQ(choose(both).choice.name, "own kernels: as asked");
  config.model.attention_backend = AttentionBackend::cudnn;
  config.train.deterministic_mode = true;
  EXPECT_TRUE(choose(both).choice.cudnn);
  EXPECT_EQ(choose(both).choice.name, "cuDNN: as asked");
  const auto device = create_cpu_device();
  try {
    try_attention(config, *device, own_only);
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "model.attention_backend: found cudnn, but this build has no cuDNN; expected auto or flash");
  }
}

TEST_F(AttentionChoiceTest, AllRanksTakeTheFasterOneOfTheirSumAndNoneWhatOneHasNot) {
  const auto name_on_both = [](const AttentionTrial& second) {
    const AttentionTrial first{.cudnn = true, .own_ns = 4'000'000, .cudnn_ns = 3'000'000};
    std::string names[2];
    run_thread_ranks(2, [&](Communicator& world) {
      HostWorld host(world);
      names[world.rank()] = choose_attention(world.rank() == 0 ? first : second, host).name;
    });
    EXPECT_EQ(names[0], names[1]);
    return names[0];
  };
  EXPECT_EQ(name_on_both({.cudnn = true, .own_ns = 4'000'000, .cudnn_ns = 3'000'000}),
            "cuDNN: 3.000 ms forward and backward, own kernels 4.000 ms");
  EXPECT_EQ(name_on_both({.cudnn = true, .own_ns = 4'000'000, .cudnn_ns = 7'000'000}),
            "own kernels: 4.000 ms forward and backward, cuDNN 5.000 ms");
  EXPECT_EQ(name_on_both({.why = "too old"}), "own kernels: too old");
}

TEST_F(AttentionChoiceTest, OnACpuOnlyAutoHasAMeaning) {
  config.device.kind = DeviceKind::cpu;
  for (const AttentionBackend asked : {AttentionBackend::flash, AttentionBackend::cudnn}) {
    config.model.attention_backend = asked;
    run_thread_ranks(1, [&](Communicator& world) {
      try {
        make_backend(config, world, 1);
        ADD_FAILURE() << "no error";
      } catch (const ConfigError& error) {
        EXPECT_EQ(error.what(), "model.attention_backend: found " + std::string(word_of(asked)) +
                                    ", but this run computes on CPUs, where it means nothing; expected auto");
      }
    });
  }
  config.model.attention_backend = std::nullopt;
  run_thread_ranks(1, [&](Communicator& world) { EXPECT_EQ(make_backend(config, world, 1).attention_name, ""); });
}

}  // namespace
}  // namespace trivet
