// The calls that a rank queues: byte counts worked out by hand, and those measured in training runs.
#include "tools/explain/explain.h"

#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <regex>
#include <sys/wait.h>

#include "base/files.h"
#include "base/text.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"
#include "tests/support/where.h"

namespace trivet::test {
namespace {

RecordedStep recorded(const Config& config, int ranks, int rank) {
  const Resolved run = resolved(config, ranks);
  return record_step(run.config, run.layout, rank);
}

std::string page_of(const Config& config, int ranks, int rank) {
  const Resolved run = resolved(config, ranks);
  return explain({.config = run.config, .origins = {}, .path = "test"}, run.layout, rank).page;
}

struct Calls {
  int all_reduces = 0, all_gathers = 0, reduce_scatters = 0, others = 0;
  int64_t bytes = 0, wire_bytes = 0;  // bytes: of the largest call
  bool operator==(const Calls&) const = default;
};
Calls calls_of(const std::vector<Queued>& queued) {
  Calls calls;
  for (const Queued& q : queued) {
    if (!q.call) continue;
    ++(q.call->kind == CommCall::all_reduce       ? calls.all_reduces
       : q.call->kind == CommCall::all_gather     ? calls.all_gathers
       : q.call->kind == CommCall::reduce_scatter ? calls.reduce_scatters
                                                  : calls.others);
    calls.bytes = std::max(calls.bytes, q.call->bytes), calls.wire_bytes += q.wire_bytes();
  }
  return calls;
}

constexpr int kLayerUnit = 2;                   // after the embedding and layer 0
constexpr int64_t kBoundary = 16 * 2 * 32 * 4;  // [s, b, h]

// f and g: all-reduces after proj and fc2, and in the backward pass after fc1 and qkv. Each of two ranks sends half of
// the tensor to be summed, and half of the sum.
TEST(Explain, ALayerOfTwoTensorRanksHasFourAllReduces) {
  const RecordedStep step = recorded(cut(tiny_config(), {.t = 2}), 2, 1);
  for (const int microbatch : {0, 3})
    EXPECT_EQ(calls_of(step.of_unit(kLayerUnit, microbatch)),
              (Calls{.all_reduces = 4, .bytes = kBoundary, .wire_bytes = 4 * kBoundary}));
}

// Each all-reduce becomes an all-gather and a reduce-scatter, and the inputs of qkv and fc1 are gathered again for dW.
TEST(Explain, ALayerOfASequenceParallelGroupGathersTwoInputsAgain) {
  const RecordedStep step = recorded(cut(tiny_config(), {.t = 2, .sequence_parallel = true}), 2, 1);
  EXPECT_EQ(calls_of(step.of_unit(kLayerUnit, 0)),
            (Calls{.all_gathers = 6, .reduce_scatters = 4, .bytes = kBoundary, .wire_bytes = 10 * kBoundary / 2}));
}

// Forward, input gradient and weight gradient.
TEST(Explain, NamesTheThreeGemmsOfEachLinearLayer) {
  for (const char* dtype : {"fp32", "bf16"}) {
    Config config = cut(tiny_config(), {.t = 2});
    set_key(config, "precision.dtype", dtype);
    const std::string page = page_of(config, 2, 0);
    for (const char* name : {"qkv, step 2", "proj, step 4", "fc1, step 5", "fc2, step 6"}) {
      int count = 0;
      for (size_t at = page.find(name); at != page.npos; at = page.find(name, at + 1)) ++count;
      EXPECT_EQ(count, 3) << name << '\n' << page;
    }
  }
}

class ExplainedStep : public testing::TestWithParam<LayoutCase> {};

TEST_P(ExplainedStep, HasTheBytesOfATrainedStep) {
  const Config config = config_of(GetParam());
  const int ranks = GetParam().ranks();
  const std::vector<TracedStep> trained = traced_steps(config, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    std::array<int64_t, kCommClasses.size()> wanted{}, found{};
    for (const std::vector<Span>& row : trained[static_cast<size_t>(rank)].rows)
      for (const Span& span : row)
        if (is_comm(span.info.category)) wanted.at(class_of(span.info.category)) += span.info.cost.bytes;
    for (const Queued& q : recorded(config, ranks, rank).queued)
      if (q.call) found.at(class_of(q.group->category)) += q.wire_bytes();
    EXPECT_EQ(found, wanted) << "rank " << rank;
    EXPECT_GT(found.at(class_of(comm_of("data"))), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Explain, ExplainedStep,
                         testing::Values(LayoutCase{"zero1", {.t = 2, .p = 2, .d = 2, .strategy = "optim"}},
                                         LayoutCase{"zero3", {.t = 2, .d = 2, .strategy = "optim_grads_params"}}),
                         [](const auto& info) { return info.param.name; });

// Under ZeRO-3, a layer's weights are gathered for each pass, and its gradients are reduced after the last.
TEST(Explain, ALayersListHasItsStreamedWeightsAndGradients) {
  const RecordedStep step = recorded(cut(tiny_config(), {.d = 2, .strategy = "optim_grads_params"}), 2, 0);
  const Calls calls = calls_of(step.of_unit(kLayerUnit, 1));
  EXPECT_EQ(calls.all_gathers, 2);
  EXPECT_EQ(calls.reduce_scatters, 1);
  EXPECT_EQ(calls.all_reduces + calls.others, 0);
}

// A graph is launched under one label, which belongs to no layer, so its layers would seem to lack GEMMs.
TEST(Explain, SeesLayersInCudaGraphs) {
  Config config = cut(tiny_config(), {.t = 2});
  config.device.kind = DeviceKind::cuda;
  config.device.cuda_graph_impl = CudaGraphs::local;
  EXPECT_EQ(std::ranges::count_if(recorded(config, 2, 0).of_unit(kLayerUnit, 0),
                                  [](const Queued& q) { return q.work && q.work->kind == TapeWork::gemm; }),
            4 * 3);
}

TEST(Explain, APageNamesSourcesAndChaptersThatExist) {
  const std::string page =
      page_of(cut(tiny_config(), {.t = 2, .p = 2, .d = 2, .sequence_parallel = true, .strategy = "optim"}), 8, 5);
  EXPECT_TRUE(page.starts_with("# test on 8 ranks, as rank 5 (tp 1, pp 1, dp 0) sees it\n"));
  const std::regex place("([a-z0-9_/-]+/[a-z0-9_-]+\\.(md|h|cc))(:(\\w+))?");
  int places = 0;
  for (std::sregex_iterator at(page.begin(), page.end(), place), end; at != end; ++at, ++places) {
    ASSERT_TRUE(std::filesystem::exists(source_path((*at)[1]))) << at->str();
    EXPECT_NE(read_text(source_path((*at)[1])).find((*at)[4]), std::string::npos) << at->str();
  }
  EXPECT_GT(places, 15);
}

// The picture shows the same calls: a layer's as rows, a step's as titles of its cells.
TEST(Explain, ThePictureShowsEachCallAndItsBytes) {
  const Cut layout{.t = 2, .d = 2, .sequence_parallel = true, .strategy = "optim_grads_params"};
  const Resolved run = resolved(cut(tiny_config(), layout), 4);
  const std::string svg = explain({.config = run.config, .origins = {}, .path = "test"}, run.layout, 3).picture;
  const auto count = [&](const std::string& text) {
    const std::regex pattern(text);
    return std::distance(std::sregex_iterator(svg.begin(), svg.end(), pattern), std::sregex_iterator());
  };
  EXPECT_EQ(count(">all_gather  tensor<"), 6);
  EXPECT_EQ(count(">reduce_scatter  tensor<"), 4);
  EXPECT_EQ(count(fmt::format(">{} bytes</text>", grouped(kBoundary))), 10);

  const RecordedStep step = record_step(run.config, run.layout, 3);
  int64_t queued = 0, calls = 0, drawn = 0, drawn_calls = 0;
  for (const Queued& q : step.queued)
    if (q.call) ++calls, queued += q.call->bytes;
  const std::regex cell("<title>([0-9]+) calls?, [^:]*: ([0-9,]+) bytes</title>");
  for (std::sregex_iterator at(svg.begin(), svg.end(), cell), end; at != end; ++at)
    drawn_calls += std::stoll((*at)[1]), drawn += std::stoll(std::regex_replace((*at)[2].str(), std::regex(","), ""));
  EXPECT_EQ(drawn_calls, calls);
  EXPECT_EQ(drawn, queued);
}

TEST(Explain, RefusesARankThatIsNotThere) {
  for (const int rank : {-1, 2})
    EXPECT_EQ(message_of([&] { page_of(cut(tiny_config(), {.t = 2}), 2, rank); }),
              fmt::format("--rank: found {}, expected a rank from 0 to 1", rank));
}

TEST(Explain, RefusesARunWithoutTraining) {
  Config config = tiny_config();
  config.train.skip_train = true;
  EXPECT_NE(message_of([&] { page_of(config, 1, 0); }).find("train.skip_train"), std::string::npos);
}

TEST(ExplainProgram, PrintsAPageOrOneMessage) {
  const TempDir dir;
  const auto run = [&](const std::string& arguments) {
    const int status =
        std::system(fmt::format("{} explain {} >{} 2>{}", program_path(), arguments, dir / "out", dir / "err").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  const std::string file = source_path("docs/course/one_rank.yaml") + " --set model.vocab_size=257";
  EXPECT_EQ(run(file + " --ranks 3 --rank 2 --set parallel.tensor_model_parallel_size=3"), 0) << read_text(dir / "err");
  EXPECT_NE(read_text(dir / "out").find("\n## 4. Schedule\n"), std::string::npos);
  EXPECT_EQ(run(file + " --svg " + (dir / "a.svg")), 0);
  EXPECT_EQ(read_text(dir / "a.svg").substr(0, 4), "<svg");
  EXPECT_EQ(read_text(dir / "out"), "");
  // A run of a different configuration has different times.
  std::filesystem::create_directory(dir / "other");
  write_text(dir / "other/trace.json", "[]");
  write_text(dir / "other/config.resolved.yaml", read_text(source_path("docs/course/one_rank.yaml")));
  EXPECT_EQ(run(file + " --step " + (dir / "other") + " --set model.num_layers=3"), 64);
  EXPECT_NE(read_text(dir / "err").find("was run with model.num_layers 2, found 3"), std::string::npos)
      << read_text(dir / "err");
  EXPECT_EQ(run(file + " --step " + (dir / "no_run")), 64);
  EXPECT_NE(read_text(dir / "err").find(dir / "no_run"), std::string::npos);
  EXPECT_EQ(run(dir / "none.yaml"), 64);
  EXPECT_EQ(read_text(dir / "err"), fmt::format("trivet: {}: no such file\n", dir / "none.yaml"));
  EXPECT_EQ(run(file + " --rank 1"), 64);
  EXPECT_EQ(read_text(dir / "err"), "trivet: --rank: found 1, expected a rank from 0 to 0\n");
  EXPECT_EQ(read_text(dir / "out"), "");
}

}  // namespace
}  // namespace trivet::test
