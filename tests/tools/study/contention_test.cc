// GEMMs during a collective. The slowdown depends on the machine, so only its bounds are checked.
#include "tools/study/contention.h"

#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/train/run.h"
#include "parallel/comm/world.h"
#include "tests/support/where.h"
#include "tests/tools/study/study_text.h"

namespace trivet {
namespace {

Config resolved(const StudyFolder& folder, int ranks, const std::vector<std::string>& sets) {
  LoadedConfig loaded = load_config(folder / "run.yaml", sets);
  resolve(loaded, facts_of(loaded.config, ranks));
  return loaded.config;
}

TEST(Contention, IsACurveWithinTheLinksBandwidth) {
  // given: a link over which the other rank's half of the buffer takes 4 ms
  const StudyFolder folder;
  const Config config = resolved(folder, 2, {"comm.data_link_gbps=1", "device.kind=cpu", "device.threads_per_rank=1"});
  const ContentionOptions options{.uses = {0.5, 1}, .rounds = 2, .bytes = 1'000'000, .seconds = 0.01};

  // when
  std::vector<nlohmann::ordered_json> of_ranks(2);
  run_thread_ranks(2, [&](Communicator& world) {
    of_ranks[static_cast<size_t>(world.rank())] = measure_contention(config, world, options);
  });

  // then
  EXPECT_EQ(of_ranks[0], of_ranks[1]) << "ranks tell the same";
  const nlohmann::ordered_json& contention = of_ranks[0];
  EXPECT_EQ(contention["ranks"], 2);
  EXPECT_EQ(contention["gemm"]["m"], config.batch.micro_batch_size * config.model.seq_length);
  EXPECT_EQ(contention["gemm"]["n"], *config.model.ffn_hidden_size);
  EXPECT_EQ(contention["gemm"]["k"], config.model.hidden_size);
  EXPECT_GT(contention["gemm"]["seconds"], 0);
  EXPECT_EQ(contention["collective"]["bytes"], 1'000'000);
  ASSERT_EQ(contention["curve"].size(), 2u);
  for (const auto& point : contention["curve"]) {
    EXPECT_GT(point["link_use"], 0);
    EXPECT_LE(point["link_use"], 1);
    EXPECT_GT(point["bus_gbps"], 0);
    EXPECT_LE(point["bus_gbps"], 1) << "no faster than the link";
    EXPECT_GT(point["slowdown_low"], 0);
    EXPECT_LE(point["slowdown_low"], point["slowdown"]);
    EXPECT_LE(point["slowdown"], point["slowdown_high"]);
  }
}

TEST(Contention, NeedsTwoRanks) {
  const StudyFolder folder;
  const Config config = resolved(folder, 1, {});
  EXPECT_NE(message_of<ConfigError>([&] {
              run_thread_ranks(1, [&](Communicator& world) { measure_contention(config, world, {}); });
            }).find("expected at least 2 ranks"),
            std::string::npos);
}

// ---- the commands

int command(const StudyFolder& folder, const std::string& arguments) {
  const int status =
      std::system(fmt::format("cd {} && env -u OMPI_COMM_WORLD_SIZE CUDA_VISIBLE_DEVICES= {} {} >out.txt 2>err.txt",
                              folder / "", program_path(), arguments)
                      .c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ContentionProgram, MeasuresUnderTheLauncherOfAStudy) {
  const StudyFolder folder;
  write_text(folder / "study.yaml", with(kGoodStudy, "factors:", "set: {device.threads_per_rank: 1}\nfactors:"));
  ASSERT_EQ(command(folder, "study study.yaml --out out --contention"), 0) << read_text(folder / "err.txt");
  const auto json = nlohmann::json::parse(read_text(folder / "out/contention.json"));
  ASSERT_EQ(json["curves"].size(), 1u) << "on CPUs there is no CTA budget";
  EXPECT_TRUE(json["curves"][0]["max_ctas"].is_null());
  EXPECT_EQ(json["curves"][0]["exchange"], "threads");
  EXPECT_EQ(json["curves"][0]["curve"].size(), 4u);
  EXPECT_EQ(command(folder, "contention run.yaml --ranks 1"), 64);
}

}  // namespace
}  // namespace trivet
