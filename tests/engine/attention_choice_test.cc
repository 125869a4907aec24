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
  // The rank's choice, and whether it measured; one rank.
  struct Found {
    std::string name;
    bool own = false, cudnn = false, measured = false;
  };
  Found choose(const MakeOps& make_ops) {
    Found found;
    run_thread_ranks(1, [&](Communicator& world) {
      HostWorld host(world);
      const auto device = create_cpu_device();
      AttentionTrial trial = try_attention(config, *device, make_ops);
      const Ops *const own = trial.own.get(), *const cudnn = trial.cudnn.get();
      found.measured = trial.own_ns > 0 && trial.cudnn_ns > 0;
      const AttentionChoice choice = choose_attention(std::move(trial), host);
      found.name = choice.name;
      found.own = own && choice.ops.get() == own;
      found.cudnn = cudnn && choice.ops.get() == cudnn;
    });
    return found;
  }
  Config config = test::tiny_config();
};

TEST_F(AttentionChoiceTest, TheShapeIsThatOfAMicroBatchOnOneTensorParallelRank) {
  config.parallel.tensor_model_parallel_size = 2;
  EXPECT_EQ(attention_shape_of(config), (AttentionShape{.s = 16, .b = 2, .heads = 2, .d = 8, .dtype = DType::f32}));
}

TEST_F(AttentionChoiceTest, AutoMeasuresBoth) {
  const Found found = choose(both);
  EXPECT_TRUE(found.measured);
  EXPECT_NE(found.own, found.cudnn);
  EXPECT_TRUE(found.name.starts_with(found.own ? "own kernels: " : "cuDNN: ")) << found.name;
}

TEST_F(AttentionChoiceTest, WhatCannotBeIsNotChosenAndSaysWhy) {
  const Found found = choose(own_only);
  EXPECT_TRUE(found.own);
  EXPECT_FALSE(found.measured);
  EXPECT_EQ(found.name, "own kernels: this build has no cuDNN");
}

TEST_F(AttentionChoiceTest, NothingIsMeasuredInDeterministicModeNorWithDropout) {
  const auto expect_own = [&](const std::string& name) {
    const Found found = choose(both);
    EXPECT_TRUE(found.own);
    EXPECT_FALSE(found.measured);
    EXPECT_EQ(found.name, name);
  };
  config.train.deterministic_mode = true;
  expect_own("own kernels: deterministic_mode measures nothing");
  config.train.deterministic_mode = false;
  config.model.attention_dropout = 0.1;
  expect_own("own kernels: cuDNN has not the dropout of attention_dropout");
}

TEST_F(AttentionChoiceTest, WhatIsAskedForIsTakenOrAnError) {
  config.model.attention_backend = "flash";
  EXPECT_EQ(choose(both).name, "own kernels: as asked");
  config.model.attention_backend = "cudnn";
  const Found found = choose(both);
  EXPECT_TRUE(found.cudnn);
  EXPECT_FALSE(found.measured);
  EXPECT_EQ(found.name, "cuDNN: as asked");
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
  const auto name_on_both = [](int64_t second_cudnn_ns) {
    std::string names[2];
    run_thread_ranks(2, [&](Communicator& world) {
      HostWorld host(world);
      const bool second = world.rank() == 1;
      AttentionTrial trial{
          .own = create_cpu_ops(1), .cudnn = create_cpu_ops(1), .own_ns = 4'000'000, .cudnn_ns = 3'000'000};
      if (second) trial.cudnn_ns = second_cudnn_ns;
      if (second && second_cudnn_ns == 0) {
        trial.cudnn = nullptr;
        trial.why = "too old";
      }
      names[world.rank()] = choose_attention(std::move(trial), host).name;
    });
    EXPECT_EQ(names[0], names[1]);
    return names[0];
  };
  EXPECT_EQ(name_on_both(3'000'000), "cuDNN: 3.000 ms forward and backward, own kernels 4.000 ms");
  EXPECT_EQ(name_on_both(7'000'000), "own kernels: 4.000 ms forward and backward, cuDNN 5.000 ms");
  EXPECT_EQ(name_on_both(0), "own kernels: too old");
}

TEST_F(AttentionChoiceTest, OnACpuOnlyAutoHasAMeaning) {
  config.device.kind = "cpu";
  for (const std::string asked : {"flash", "cudnn"}) {
    config.model.attention_backend = asked;
    run_thread_ranks(1, [&](Communicator& world) {
      try {
        make_backend(config, world, 1);
        ADD_FAILURE() << "no error";
      } catch (const ConfigError& error) {
        EXPECT_EQ(error.what(), "model.attention_backend: found " + asked +
                                    ", but this run computes on CPUs, where it means nothing; expected auto");
      }
    });
  }
  config.model.attention_backend = "auto";
  run_thread_ranks(1, [&](Communicator& world) { EXPECT_EQ(make_backend(config, world, 1).attention_name, ""); });
}

}  // namespace
}  // namespace trivet
