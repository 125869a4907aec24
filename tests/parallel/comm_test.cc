// The thread back end: the common cases, then a rank that fails or whose calls differ from its peers'.
#include <array>
#include <cstdlib>
#include <gtest/gtest.h>
#include <map>
#include <string>

#include "kernels/base/device.h"
#include "parallel/comm/host_world.h"
#include "parallel/comm/world.h"
#include "tests/support/comm_cases.h"
#include "tests/support/rank_values.h"

namespace trivet {
namespace {

// ---- the cases that every back end passes

class ThreadComm : public testing::TestWithParam<std::tuple<int, CommCase>> {};

TEST_P(ThreadComm, conforms) {
  const auto& [ranks, the_case] = GetParam();
  run_thread_ranks(ranks, the_case.body);
}

INSTANTIATE_TEST_SUITE_P(ranks, ThreadComm,
                         testing::Combine(testing::Values(1, 2, 3, 4, 8), testing::ValuesIn(comm_cases())),
                         [](const auto& info) {
                           return std::string(std::get<1>(info.param).name) + "_on_" +
                                  std::to_string(std::get<0>(info.param));
                         });

// ---- failures

// The message of the Error with which a world of `ranks` ends.
template <class Failure = Error, class F>
std::string failure_of(int ranks, F&& rank_main) {
  try {
    run_thread_ranks(ranks, rank_main);
  } catch (const Failure& e) {
    return e.what();
  }
  return "no failure";
}

void expect_contains(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

TEST(ThreadFailure, keeps_its_type_and_names_its_rank) {
  const auto rank_main = [](Communicator& world) {
    if (world.rank() == 2) throw ConfigError("no memory for it", Lack::memory);
    world.barrier();
  };
  EXPECT_EQ(failure_of<ConfigError>(4, rank_main), "rank 2: no memory for it");
  const auto data = [](Communicator& world) {
    if (world.rank() == 0) throw DataError("train.idx: too short");
    world.barrier();
  };
  EXPECT_EQ(failure_of<DataError>(2, data), "rank 0: train.idx: too short");
  const auto foreign = [](Communicator& world) {
    if (world.rank() == 1) throw std::runtime_error("bad_alloc or so");
    world.barrier();
  };
  EXPECT_EQ(failure_of<Error>(2, foreign), "rank 1: bad_alloc or so");
}

// If all ranks have the same problem, which one reports it first is chance, so none is named.
TEST(ThreadFailure, of_all_ranks_names_none) {
  const auto all = [](Communicator&) { throw DataError("train.idx: too short"); };
  EXPECT_EQ(failure_of<DataError>(4, all), "train.idx: too short");
  EXPECT_EQ(failure_of<DataError>(1, all), "train.idx: too short");
  const auto first = [](Communicator& world) {
    if (world.rank() == 0) throw ConfigError("the folder is in use");
    world.barrier();
  };
  EXPECT_EQ(failure_of<ConfigError>(3, first), "the folder is in use");
}

TEST(HostWorld, AProblemOfAllRanksNamesNone) {
  const std::string lengthy(2000, 'x');
  run_thread_ranks(3, [&](Communicator& world) {
    HostWorld host(world);
    EXPECT_EQ(host.first_problem(""), "");
    EXPECT_EQ(host.first_problem("no disk"), "no disk");
    EXPECT_EQ(host.first_problem(lengthy), lengthy.substr(0, 999));
    EXPECT_EQ(host.first_problem(world.rank() == 1 ? "no disk" : ""), "rank 1: no disk");
    EXPECT_EQ(host.first_problem("no disk " + std::to_string(world.rank())), "rank 0: no disk 0");
  });
}

// The ranks wait in other groups, on other streams, in every kind of call; none of them for rank 0 alone.
TEST(ThreadFailure, ends_every_wait_in_every_group) {
  const std::string text = failure_of<IoError>(8, [](Communicator& world) {
    RankStreams rank;
    const auto pair = world.split({world.rank() & ~1, world.rank() | 1}, "pair", comm_of("tensor"));
    const auto nested = pair->twin("nested", comm_of("tensor"));
    const auto worker = rank.device->create_side_stream(StreamPriority::normal);
    const FailureGuard guard(world);
    std::vector<float> x(100), y(100);
    if (world.rank() == 7) {
      nested->all_reduce(tensor_of(x), Reduce::sum, *worker);
      throw IoError("disk is full");
    }
    if (world.rank() == 6) nested->all_reduce(tensor_of(x), Reduce::sum, *worker);  // 7 takes part
    if (world.rank() % 2 == 0) nested->recv(tensor_of(y), 1, *rank.stream);         // no rank sends
    else if (world.rank() == 3) world.twin("never", comm_of("data"));
    else world.all_reduce(tensor_of(y), Reduce::sum, *rank.stream);
  });
  EXPECT_EQ(text, "rank 7: disk is full");
}

// The failing rank's own worker stream waits for peers that wait for the failing rank: only the guard ends this.
TEST(ThreadFailure, guard_ends_calls_on_the_failing_ranks_streams) {
  const std::string text = failure_of<DataError>(2, [](Communicator& world) {
    RankStreams rank;
    const auto side = world.twin("side", comm_of("data"));
    const auto worker = rank.device->create_side_stream(StreamPriority::normal);
    const FailureGuard guard(world);
    std::vector<float> x(100);
    if (world.rank() == 0) {
      side->all_reduce(tensor_of(x), Reduce::sum, *worker);
      throw DataError("token 70000 of 50257");
    }
    world.barrier();
    side->all_reduce(tensor_of(x), Reduce::sum, *worker);
  });
  EXPECT_EQ(text, "rank 0: token 70000 of 50257");
}

TEST(ThreadFailure, abort_ends_the_world) {
  const std::string text = failure_of(3, [](Communicator& world) {
    if (world.rank() == 1) world.abort("no progress for 60 s");
    world.barrier();
  });
  EXPECT_EQ(text, "rank 1: no progress for 60 s");
}

TEST(ThreadFailure, rank_that_ends_early_is_named) {
  const std::string text = failure_of(4, [](Communicator& world) {
    RankStreams rank;
    std::vector<float> x(10);
    if (world.rank() != 2) world.all_reduce(tensor_of(x), Reduce::sum, *rank.stream);
  });
  expect_contains(text, {"all_reduce", "rank 2 has ended", "group 'world'"});
  const std::string transfer = failure_of(2, [](Communicator& world) {
    RankStreams rank;
    std::vector<float> x(10);
    if (world.rank() == 1) world.recv(tensor_of(x), 0, *rank.stream);
  });
  expect_contains(transfer, {"rank 1: ", "recv", "rank 0, which has ended"});
}

// ---- mismatches: each rank's calls are valid by themselves

TEST(ThreadMismatch, names_call_sizes_and_ranks) {
  const auto text_of = [](void (*odd_one)(Communicator&, Stream&, std::vector<float>&)) {
    return failure_of(4, [odd_one](Communicator& world) {
      RankStreams rank;
      std::vector<float> x(100);
      world.barrier();
      if (world.rank() == 3) odd_one(world, *rank.stream, x);
      else world.all_reduce(tensor_of(x), Reduce::sum, *rank.stream);
    });
  };
  const auto size = text_of([](Communicator& world, Stream& stream, std::vector<float>& x) {
    world.all_reduce(part_of(x, 0, 99), Reduce::sum, stream);
  });
  expect_contains(size, {"group 'world', call 1", "rank 0 calls all_reduce(sum) of 100 fp32",
                         "rank 3 calls all_reduce(sum) of 99 fp32"});
  const auto type = text_of([](Communicator& world, Stream& stream, std::vector<float>& x) {
    world.all_reduce({x.data(), DType::bf16, {100}}, Reduce::sum, stream);
  });
  expect_contains(type, {"of 100 fp32", "of 100 bf16"});
  const auto op = text_of([](Communicator& world, Stream& stream, std::vector<float>& x) {
    world.all_reduce(tensor_of(x), Reduce::max, stream);
  });
  expect_contains(op, {"all_reduce(sum)", "all_reduce(max)"});
  const auto call = text_of([](Communicator& world, Stream& stream, std::vector<float>& x) {
    world.reduce_scatter(tensor_of(x), part_of(x, 75, 25), Reduce::sum, stream);
  });
  expect_contains(call, {"rank 0 calls all_reduce(sum)", "rank 3 calls reduce_scatter(sum)"});
  const auto skipped = text_of([](Communicator& world, Stream&, std::vector<float>&) { world.barrier(); });
  expect_contains(skipped, {"rank 0 calls all_reduce(sum)", "rank 3 calls barrier"});
}

TEST(ThreadMismatch, names_the_roots) {
  const std::string text = failure_of(3, [](Communicator& world) {
    RankStreams rank;
    std::vector<float> x(10);
    world.broadcast(tensor_of(x), world.rank() == 1 ? 1 : 0, *rank.stream);
  });
  expect_contains(text, {"rank 0 calls broadcast from 0", "rank 1 calls broadcast from 1"});
}

TEST(ThreadMismatch, names_both_ends_of_a_transfer) {
  for (const bool receiver_waits : {false, true}) {
    const std::string text = failure_of(2, [receiver_waits](Communicator& world) {
      RankStreams rank;
      std::vector<float> x(10);
      if (world.rank() == 0) {
        world.send(part_of(x, 0, 7), 1, *rank.stream);
        if (receiver_waits) world.barrier();
      } else {
        if (!receiver_waits) world.twin("wait", comm_of("data"));
        world.recv(tensor_of(x), 0, *rank.stream);
      }
      if (world.rank() == 0 && !receiver_waits) world.twin("wait", comm_of("data"));
    });
    expect_contains(text, {"rank 1: ", "rank 0 sends 7 fp32", "rank 1 receives 10 fp32"});
  }
}

TEST(ThreadMismatch, names_who_lists_other_members_of_a_new_group) {
  // A list each: of a rank that leaves one out, and of ranks that are all the first of theirs.
  for (const auto& lists : {std::vector<std::vector<int>>{{0, 1, 2}, {0, 1}, {0, 1, 2}}, {{0, 1}, {1}, {2}}}) {
    const std::string text = failure_of(
        3, [&](Communicator& world) { world.split(lists[static_cast<size_t>(world.rank())], "odd", comm_of("data")); });
    expect_contains(text, {"group 'world', split 'odd': ranks", "list different members"});
  }
}

TEST(ThreadMismatch, arguments_are_checked_before_anything_moves) {
  run_thread_ranks(2, [](Communicator& world) {
    RankStreams rank;
    std::vector<float> x(10);
    EXPECT_THROW(world.reduce_scatter(tensor_of(x), part_of(x, 0, 3), Reduce::sum, *rank.stream), Error);
    EXPECT_THROW(world.all_gather(part_of(x, 2, 5), tensor_of(x), *rank.stream), Error);  // not its part of full
    EXPECT_THROW(world.broadcast(tensor_of(x), 2, *rank.stream), Error);
    EXPECT_THROW(world.split({0, 2}, "nobody", comm_of("data")), Error);
    EXPECT_THROW(world.split({1, 0, 1}, "twice", comm_of("data")), Error);
    EXPECT_THROW(world.send(tensor_of(x), world.rank(), *rank.stream), Error);
    EXPECT_THROW(world.recv(tensor_of(x), -1, *rank.stream), Error);
    world.barrier();  // the world still works
  });
}

TEST(ThreadRanks, need_at_least_one) {
  EXPECT_THROW(run_thread_ranks(0, [](Communicator&) {}), ConfigError);
}

// This process's rank, from the variables that launchers set on the second of two nodes.
TEST(Launcher, SaysWhichRankThisProcessIs) {
  const std::array<std::string, 12> all = {"OMPI_COMM_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "PMI_SIZE",
                                           "PMI_RANK",
                                           "MV2_COMM_WORLD_SIZE",
                                           "MV2_COMM_WORLD_RANK",
                                           "SLURM_STEP_ID",
                                           "SLURM_STEP_NUM_TASKS",
                                           "SLURM_NTASKS",
                                           "SLURM_PROCID",
                                           "SLURM_LOCALID"};
  std::map<std::string, std::string> before;
  for (const std::string& name : all)
    if (const char* value = std::getenv(name.c_str())) before[name] = value;
  const auto expect = [&](const std::map<std::string, std::string>& environment, int size, int rank) {
    for (const std::string& name : all) unsetenv(name.c_str());
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    EXPECT_EQ(launched_world_size(), size) << environment.begin()->first;
    EXPECT_EQ(launched_rank(), rank) << environment.begin()->first;
  };
  expect({{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}, 8, 5);
  expect({{"PMI_SIZE", "8"}, {"PMI_RANK", "5"}}, 8, 5);
  expect({{"MV2_COMM_WORLD_SIZE", "8"}, {"MV2_COMM_WORLD_RANK", "5"}}, 8, 5);
  expect({{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "5"}, {"SLURM_LOCALID", "1"}}, 8, 5);
  expect({{"SLURM_STEP_ID", "0"},
          {"SLURM_NTASKS", "16"},
          {"SLURM_STEP_NUM_TASKS", "8"},
          {"SLURM_PROCID", "5"},
          {"SLURM_LOCALID", "1"}},
         8, 5);
  // A shell started by salloc, and a script run by sbatch.
  expect({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}, 0, 0);
  expect({{"SLURM_STEP_ID", "4294967291"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}, 0, 0);
  for (const std::string& name : all) unsetenv(name.c_str());
  for (const auto& [name, value] : before) setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace
}  // namespace trivet
