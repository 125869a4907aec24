// A rank as a whole: built without its peers, and on a mesh with an axis that no layer knows.
#include "engine/train/rank.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <set>

#include "engine/config/load.h"
#include "parallel/comm/planning_comm.h"
#include "tests/support/training.h"
#include "tests/support/where.h"

namespace trivet::test {
namespace {

// The number of threads of this process.
int threads_now() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

Backend planning_backend() {
  Backend backend;
  backend.device = create_planning_device();
  backend.ops = create_cpu_ops(1);  // never used
  return backend;
}

// GPT-3 175B on 1,024 ranks: any of them is built by this thread alone, in milliseconds, with the planned memory.
TEST(Rank, OfAnyLayoutIsBuiltWithoutPeers) {
  const std::vector<std::string> sets = {"parallel.tensor_model_parallel_size=8",
                                         "parallel.pipeline_model_parallel_size=8",
                                         "parallel.pipeline_schedule=interleaved",
                                         "parallel.virtual_pipeline_model_parallel_size=6", "batch.micro_batch_size=1"};
  LoadedConfig loaded = load_config(source_path("configs/gpt3_175b.yaml"), sets);
  const Layout layout = resolve(loaded, {.world_size = 1024});
  const int threads = threads_now();
  int64_t fastest = INT64_MAX;
  for (const int number : {0, 1, 63, 64, 511, 1023}) {
    const int64_t begin = now_ns();
    Backend backend = planning_backend();
    const auto world = create_planning_communicator(*backend.device, number, 1024);
    Rank rank(loaded.config, layout, std::move(backend), *world, {});
    fastest = std::min(fastest, now_ns() - begin);

    EXPECT_EQ(rank.mesh.at, position_of(number, layout.mesh));
    EXPECT_EQ(rank.mesh.tensor->size(), 8);
    EXPECT_EQ(rank.mesh.data->size(), 16);
    EXPECT_EQ(rank.mesh.pipeline->size(), 8);
    EXPECT_EQ(rank.mesh.model->size(), 64);
    EXPECT_EQ(rank.mesh.tensor->group().world_ranks, group_members(rank.mesh.at, layout.mesh, {Axis::tp}));
    EXPECT_EQ(rank.chunks.size(), 6u);
    EXPECT_EQ(rank.state.memory().items, plan_memory(loaded.config, layout, rank.mesh.at).items);
    const bool ends = rank.mesh.at[Axis::pp] == 0 || rank.mesh.at[Axis::pp] == 7;
    EXPECT_EQ(rank.embedding_group != nullptr, ends);  // tied embeddings
    EXPECT_LE(threads_now(), threads);

    // Addresses differ, so buffers identified by their address are distinct here, too.
    std::set<const void*> addresses;
    for (const Tensor& buffer : rank.state.boundary_buffers) addresses.insert(buffer.data);
    EXPECT_EQ(addresses.size(), rank.state.boundary_buffers.size());
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(fastest, 100'000'000);
#endif
}

// Two ranks along cp, over which parameters are replicated and gradients partial: an axis is a row of the table from
// which buckets, norm and replicas are derived, whatever its place in the order.
TEST(FourthAxis, TrainsAsOneRankDoes) {
  for (const char* order : {"tp-cp-dp-pp", "tp-dp-cp-pp", "pp-dp-cp-tp"})
    for (const char* strategy : {"no_shard", "optim", "optim_grads_params"}) {
      Config config = cut(tiny_config(), {.strategy = strategy, .c = 2});
      set_key(config, "parallel.order", order);
      with_trainers(config, 4, [](Trainer& trainer) {
        EXPECT_EQ(trainer.mesh().context->size(), 2);
        EXPECT_EQ(trainer.mesh().data->size(), 4);
        EXPECT_EQ(trainer.mesh().model->size(), 1);
        for (int i = 0; i < 3; ++i) trainer.step();
        trainer.check_replicas();
      });
      expect_near(train_on_threads(config, 4, kMatrixSteps), train_on_threads(cut(tiny_config(), {}), 1, kMatrixSteps),
                  order);
    }
}

}  // namespace
}  // namespace trivet::test
