// Training over real processes gives the same bits as over threads: mpirun starts this program with 2, 4 or 8 ranks,
// and each layout for that number of ranks is trained both ways.
#include <fmt/format.h>
#include <vector>

#include "parallel/comm/world.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

struct Case {
  Cut cut;
  bool overlap = false;  // of gradient and weight communication
  bool link = false;     // emulated, between the processes only; must not change the result
  bool llama = false;
};

std::vector<Case> cases_for(int ranks) {
  switch (ranks) {
    case 2:
      return {{2, 1, 1},
              {2, 1, 1, true},
              {1, 1, 2},
              {1, 2, 1, false, "gpipe"},
              {1, 2, 1, false, "1f1b"},
              {1, 2, 1, false, "1f1b-eager"},
              {1, 2, 1, false, "interleaved", 2},
              {1, 2, 1, false, "interleaved-bfs", 2},
              {1, 2, 1, false, "zb-h1"},
              {1, 2, 1, false, "zb-h2"},
              {1, 2, 1, false, "zb-v", 2},
              {{1, 1, 2, false, "1f1b", 1, "no_shard"}, true},
              {{1, 1, 2, false, "1f1b", 1, "optim"}, true},
              {Cut{.c = 2}, false, true},
              {Cut{.c = 2, .cp_comm_type = CpCommType::all_gather}, false, true},
              {{1, 1, 2, false, "1f1b", 1, "optim_grads_params"}, true},
              {{2, 1, 1, true, "1f1b", 1, "no_shard"}, false, true}};
    case 4:
      return {{4, 1, 1},
              {4, 1, 1, true},
              {2, 1, 2},
              {2, 1, 2, true},
              {1, 1, 4},
              {1, 4, 1, false, "gpipe"},
              {1, 4, 1, false, "1f1b-eager"},
              {1, 4, 1, false, "zb-h2"},
              {1, 2, 2, false, "interleaved", 2},
              {2, 2, 1, true, "zb-h1"},
              {1, 1, 4, false, "1f1b", 1, "optim"},
              {{2, 1, 2, true, "1f1b", 1, "optim"}, true},
              {Cut{.t = 2, .sequence_parallel = true, .strategy = "optim", .c = 2}, true, false, true},
              {Cut{.c = 4}, false, true},
              {{1, 2, 2, false, "interleaved", 2, "optim_grads"}, true},
              {{1, 2, 2, false, "1f1b", 1, "optim_grads_params"}, true},
              {{1, 2, 2, false, "interleaved", 2, "optim"}, true, true}};
    case 8:
      return {{4, 1, 2, true},
              {2, 1, 4, false},
              {2, 2, 2, true, "interleaved", 2},
              {{2, 2, 2, true, "interleaved", 2, "optim"}, true},
              {{2, 2, 2, true, "interleaved", 2, "optim"}, true, false, true}};
    default: throw ConfigError(fmt::format("no layouts for {} ranks; start 2, 4 or 8", ranks));
  }
}

// Returns 0 if both curves agree bit for bit; rank 0 compares and prints the verdict.
int compare(const Case& c, Communicator& world) {
  Config config = cut(tiny_model(c.llama), c.cut);
  config.overlap.overlap_grad_reduce = c.overlap;
  config.overlap.overlap_param_gather = c.overlap && c.cut.strategy != std::string("no_shard");
  Config linked = config;
  if (c.link) linked.comm.link_latency_us = 30, linked.comm.link_gbps = 2;
  const Curve processes = train(linked, world, 10);
  if (world.rank() != 0) return 0;
  const Curve threads = train_on_threads(config, world.size(), 10);
  const bool equal = processes.losses == threads.losses && processes.norms == threads.norms &&
                     processes.validation_loss == threads.validation_loss &&
                     processes.weights_hash == threads.weights_hash;
  fmt::print("[{}] t {} c {} p {} d {} sequence parallel {} {} {}{}{}: last loss {} over processes, {} over threads\n",
             equal ? "  OK  " : "FAILED", c.cut.t, c.cut.c, c.cut.p, c.cut.d, c.cut.sequence_parallel, c.cut.schedule,
             c.cut.strategy, c.overlap ? " overlapped" : "", c.llama ? " llama" : "", processes.losses.back(),
             threads.losses.back());
  return equal ? 0 : 1;
}

}  // namespace
}  // namespace trivet::test

int main() {
  int failed = 0;
  trivet::run_mpi_rank([&](trivet::Communicator& world) {
    for (const auto& c : trivet::test::cases_for(world.size())) failed += trivet::test::compare(c, world);
    world.barrier();
  });
  return failed == 0 ? 0 : 1;
}
