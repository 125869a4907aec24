// Collectives between thread ranks, against a plain copy by all ranks at the same time (see comm_table.h).
//
//     thread_comm_bench [ranks]
#include <cstdlib>

#include "parallel/comm/world.h"
#include "tests/bench/comm_table.h"

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  trivet::run_thread_ranks(ranks, [](trivet::Communicator& world) {
    trivet::CommTable table(world);
    table.print({table.ours()});
  });
}
