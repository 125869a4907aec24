// A program whose MPI ranks fail in the way named by its argument. tests/mpi/expect_failure.cmake runs it and checks
// the exit code, the message and the time.
#include <cstdio>
#include <string>

#include "kernels/base/device.h"
#include "parallel/comm/world.h"
#include "tests/support/rank_values.h"

namespace trivet {
namespace {

// Every rank but the failing one waits in a call that the failing rank does not make.
void fail_as(const std::string& kind, Communicator& world) {
  RankStreams rank;
  Stream& stream = *rank.stream;
  std::vector<float> x(1000);
  const int last = world.size() - 1;
  const bool odd_one = world.rank() == last;
  world.barrier();
  if (kind == "throw") {
    if (odd_one) throw ConfigError("batch.micro_batch_size: found 0");
    world.all_reduce(tensor_of(x), Reduce::sum, stream);
  } else if (kind == "throw_beside_worker") {
    // The failing rank's worker stream waits for peers that wait for the failing rank.
    const auto side = world.twin("side", comm_of("data"));
    const auto worker = rank.device->create_side_stream(StreamPriority::normal);
    const FailureGuard guard(world);
    if (odd_one) {
      side->all_reduce(tensor_of(x), Reduce::sum, *worker);
      throw DataError("train.idx: token 70000 of 50257");
    }
    world.barrier();
  } else if (kind == "size") {
    world.all_reduce(part_of(x, 0, odd_one ? 999 : 1000), Reduce::sum, stream);
  } else if (kind == "large_size") {
    std::vector<float> large(1000000);
    world.all_reduce(part_of(large, 0, odd_one ? 900000 : 1000000), Reduce::sum, stream);
  } else if (kind == "call") {
    if (odd_one) world.broadcast(tensor_of(x), 0, stream);
    else world.all_reduce(tensor_of(x), Reduce::sum, stream);
  } else if (kind == "worker_size") {
    // The mismatch is detected on a worker stream while the main thread waits in another group.
    const auto side = world.twin("side", comm_of("data"));
    const auto worker = rank.device->create_side_stream(StreamPriority::normal);
    side->all_reduce(part_of(x, 0, odd_one ? 999 : 1000), Reduce::sum, *worker);
    std::vector<float> y(1);
    world.recv(tensor_of(y), (world.rank() + 1) % world.size(), stream);  // no rank sends
  } else if (kind == "transfer") {
    if (odd_one) world.send(part_of(x, 0, 7), 0, stream);
    if (world.rank() == 0) world.recv(part_of(x, 0, 10), last, stream);
  } else if (kind == "early_end") {
    if (!odd_one) world.all_reduce(tensor_of(x), Reduce::sum, stream);
  } else if (kind == "early_end_transfer") {
    if (world.rank() == 0) world.recv(tensor_of(x), last, stream);
  } else {
    throw ConfigError("unknown failure " + kind);
  }
}

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "";
  try {
    trivet::run_mpi_rank([&](trivet::Communicator& world) { trivet::fail_as(kind, world); });
  } catch (const trivet::Error& e) {  // before the world exists
    std::fprintf(stderr, "%s\n", e.what());
    return e.exit_code();
  }
  return 0;
}
