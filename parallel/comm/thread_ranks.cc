// run_thread_ranks.
#include <system_error>
#include <thread>
#include <utility>

#include "parallel/comm/thread_comm.h"
#include "parallel/comm/thread_world.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

[[noreturn]] void rethrow_with_rank(int rank, const std::exception_ptr& cause) {
  const auto text = [&](const std::exception& e) { return "rank " + std::to_string(rank) + ": " + e.what(); };
  try {
    std::rethrow_exception(cause);
  } catch (const ConfigError& e) {
    throw ConfigError(text(e));
  } catch (const DataError& e) {
    throw DataError(text(e));
  } catch (const IoError& e) {
    throw IoError(text(e));
  } catch (const NumericsError& e) {
    throw NumericsError(text(e), e.rank);
  } catch (const TimeoutError& e) {
    throw TimeoutError(text(e));
  } catch (const std::exception& e) {
    throw Error(text(e));
  }
}

}  // namespace

void run_thread_ranks(int n, const std::function<void(Communicator& world)>& rank_main) {
  if (n < 1) throw ConfigError("ranks: expected at least 1, found " + std::to_string(n));
  const auto world = std::make_shared<ThreadWorld>(n);
  auto communicators = create_thread_communicators(world, n);
  const auto run = [&](int rank) {
    try {
      rank_main(*communicators[static_cast<size_t>(rank)]);
    } catch (const PeerFailure&) {
      // A consequence of the failure that the world knows already.
    } catch (const std::exception& e) {
      world->fail(rank, e.what(), std::current_exception());
    }
    world->end(rank);
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(n));
  try {
    for (int rank = 0; rank < n; ++rank) threads.emplace_back(run, rank);
  } catch (const std::system_error& e) {
    // Those that have started wait for the others, which will not come: they are told why.
    const auto rank = static_cast<int>(threads.size());
    const ConfigError error("ranks: the system has no thread for each of " + std::to_string(n) + ": " + e.what());
    world->fail(rank, error.what(), std::make_exception_ptr(error));
  }
  for (std::thread& thread : threads) thread.join();
  if (const auto [rank, cause] = world->failure(); cause) rethrow_with_rank(rank, cause);
}

}  // namespace trivet
