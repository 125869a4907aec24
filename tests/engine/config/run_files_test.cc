// The runs in configs/: each loads, and the figures in its head comment are right.

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <string>

#include "engine/config/explain.h"
#include "engine/config/validate.h"
#include "engine/metrics/accounting.h"
#include "engine/train/rank_state.h"
#include "tests/support/temp_dir.h"
#include "tests/support/where.h"

namespace trivet {
namespace {

// The value that the head comment of `text` states for `what`.
std::string stated(const std::string& text, const std::string& what) {
  const size_t line = text.find("#   " + what + "  ");
  EXPECT_NE(line, std::string::npos) << what;
  const size_t begin = text.find_first_not_of(' ', line + 4 + what.size());
  return text.substr(begin, text.find('\n', begin) - begin);
}

int64_t ungrouped(std::string number) {
  number.erase(std::remove(number.begin(), number.end(), ','), number.end());
  return std::stoll(number);
}

class RunFile : public testing::TestWithParam<const char*> {};

TEST_P(RunFile, LoadsAndOpensWithItsArithmetic) {
  // given
  const auto root = std::filesystem::path(source_path(""));
  const std::string path = (root / "configs" / GetParam()).lexically_normal().string();
  const std::string text = read_text(path);
  LoadedConfig loaded = load_config(path);
  const std::string parameters = stated(text, "parameters");
  const int64_t stated_vocab = ungrouped(parameters.substr(parameters.rfind(' ') + 1));

  // when
  const std::string memory_of = stated(text, "memory per rank");
  const size_t on = memory_of.find(" on ") + 4;
  const auto ranks = static_cast<int>(ungrouped(memory_of.substr(on, memory_of.find(' ', on) - on)));
  EXPECT_EQ(ranks % ranks_of_one_replica(loaded.config), 0);
  const Layout layout = resolve(loaded, {.world_size = ranks, .dataset_vocab_size = stated_vocab});
  const Config& c = loaded.config;
  const int64_t samples = *c.batch.global_batch_size, tokens = samples * c.model.seq_length;

  // then
  EXPECT_EQ(*c.model.vocab_size, stated_vocab);
  EXPECT_EQ(parameters, fmt::format("{} with a vocabulary of {}",
                                    grouped(count_parameters(model_spec_of(c.model)).total()), grouped(stated_vocab)));
  EXPECT_EQ(stated(text, "a step"),
            fmt::format("{} samples x {} = {} tokens", grouped(samples), grouped(c.model.seq_length), grouped(tokens)));
  EXPECT_EQ(stated(text, "a run"),
            fmt::format("{} steps = {} tokens", grouped(c.train.train_iters), grouped(tokens * c.train.train_iters)));
  const CheckpointConfig& k = c.checkpoint;
  EXPECT_GT(k.save_interval, 0);
  EXPECT_EQ(
      stated(text, "checkpoints"),
      fmt::format("every {} steps, {} each, the last {} in {}/checkpoints", grouped(k.save_interval),
                  bytes_text(12 * count_parameters(model_spec_of(c.model)).total()), k.keep_last, c.train.run_dir));
  int64_t state = 0;  // the largest over ranks
  for (int pp = 0; pp < layout.schedule.p; ++pp) {
    const MemoryPlan memory = plan_memory(c, layout, {{Axis::pp, pp}});
    state = std::max(state, memory.items.at(0).bytes + memory.items.at(1).bytes + memory.items.at(2).bytes);
  }
  EXPECT_EQ(memory_of, fmt::format("{}{} of weights, gradients and optimizer on {}",
                                   layout.schedule.p > 1 ? "at most " : "", bytes_text(state), counted(ranks, "rank")));
}

INSTANTIATE_TEST_SUITE_P(All, RunFile,
                         testing::Values("tiny.yaml", "gpt2_124m.yaml", "gpt3_1b3.yaml", "gpt3_175b.yaml",
                                         "llama_tiny.yaml", "llama31_8b.yaml", "llama31_70b.yaml", "llama31_405b.yaml"),
                         [](const auto& info) {
                           std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(RunFiles, AreAllTested) {
  const auto folder = std::filesystem::path(source_path("configs"));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files += entry.path().extension() == ".yaml";
  EXPECT_EQ(files, 8);
}

}  // namespace
}  // namespace trivet
