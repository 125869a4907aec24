// The strict driver: programs that hang on a GPU are detected, and their cured versions run. Each hazard involves two
// ranks, threads with a GPU each, whose streams wait for each other in NCCL; the argument `cured` removes the hazard.
#include "tests/emulation/driver.h"

#include <barrier>
#include <cstdio>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <nccl.h>
#include <thread>
#include <vector>

#include "kernels/base/cuda_device.h"
#include "kernels/cuda/launch.h"
#include "tests/emulation/runtime.h"

namespace trivet {
namespace {

template <int number>
__global__ void tick_kernel(int* to) {
  if (threadIdx.x == 0) atomicMax(to, number);  // launched on streams that are not ordered
}

// A rank for the hazards: a device, a channel in each direction without a watching thread, and memory.
struct Rank {
  int rank = 0;
  cudaStream_t stream = nullptr;
  ncclComm_t in = nullptr, out = nullptr;
  int* data = nullptr;  // one to send, one to receive, one for kernels; from the fifth element on, two per communicator

  void receive(cudaStream_t on) const { ASSERT_EQ(ncclRecv(data + 1, 1, ncclInt32, 1 - rank, in, on), ncclSuccess); }
  void send(cudaStream_t on) const { ASSERT_EQ(ncclSend(data, 1, ncclInt32, 1 - rank, out, on), ncclSuccess); }
};

ncclComm_t communicator(const char* name, int rank, int ctas, const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.commName = name;
  if (ctas > 0) config.maxCTAs = ctas;
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclSuccess);
  return comm;
}
ncclUniqueId new_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  return id;
}
cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return stream;
}
void finish(cudaStream_t stream) { check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }

constexpr int kComms = 8;  // in communicate()

void on_two_ranks(const std::function<void(const Rank&)>& body) {
  emulation::driver().patience_ms = 0;
  const ncclUniqueId ids[2] = {new_id(), new_id()};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      check_cuda(cudaSetDevice(rank), "cudaSetDevice");
      Rank self{rank, new_stream()};
      for (int from = 0; from < 2; ++from)
        (from == rank ? self.out : self.in) = communicator(from == 0 ? "0 to 1" : "1 to 0", rank, 0, ids[from]);
      check_cuda(cudaMalloc(reinterpret_cast<void**>(&self.data), (4 + 2 * kComms) * sizeof(int)), "cudaMalloc");
      // Connects the channels, as Trivet does when it creates a pair.
      if (rank == 0) self.send(self.stream);
      self.receive(self.stream);
      if (rank == 1) self.send(self.stream);
      finish(self.stream);
      body(self);
      finish(self.stream);
      cudaStreamDestroy(self.stream);
      for (const ncclComm_t comm : {rank == 0 ? self.out : self.in, rank == 0 ? self.in : self.out}) {
        ncclCommFinalize(comm);
        ncclCommDestroy(comm);
      }
      cudaFree(self.data);
    });
  for (std::thread& thread : threads) thread.join();
  emulation::driver().patience_ms = 10'000;
}

// ---- the hazards

// Both ranks receive before they compute what they send. The cure: EAGER.
void load_while_a_receive_is_posted(bool cured) {
  emulation::driver().lazy = !cured;
  on_two_ranks([](const Rank& self) {
    const cudaStream_t compute = new_stream();
    self.receive(self.stream);
    launch_kernel(tick_kernel<1>, {1, 32, compute}, self.data);
    self.send(compute);
    finish(compute);
    finish(self.stream);
    cudaStreamDestroy(compute);
  });
  emulation::driver().lazy = false;
}

// Rank 0 launches far ahead after a receive; only then does rank 1 launch the work whose result it sends. The cure:
// CudaStream::make_room.
void launch_far_ahead(bool cured) {
  emulation::Driver& driver = emulation::driver();
  driver.polls = driver.full = 0;
  on_two_ranks([&](const Rank& self) {
    if (self.rank == 1) {
      while (driver.polls == 0 && driver.full == 0) std::this_thread::yield();
      launch_kernel(tick_kernel<2>, {1, 32, self.stream}, self.data);
      return self.send(self.stream);
    }
    const auto device = create_cuda_device(0);
    const auto throttled = device->create_side_stream(StreamPriority::normal);
    const auto stream = [&] { return cured ? raw(*throttled) : self.stream; };
    self.receive(stream());
    for (int i = 0; i < 1500; ++i) launch_kernel(tick_kernel<2>, {1, 32, stream()}, self.data);
    finish(stream());
  });
}

// With more than 32 streams, a rank's last stream shares the channel of its first.
void use_streams(int count) {
  on_two_ranks([&](const Rank& self) {
    std::vector<cudaStream_t> streams{self.stream};
    while (streams.size() < static_cast<size_t>(count)) streams.push_back(new_stream());
    for (size_t i = 0; i + 1 < streams.size(); ++i) {
      if (i == 0) self.receive(streams[0]);
      else launch_kernel(tick_kernel<3>, {1, 32, streams[i]}, self.data + 2);
    }
    self.send(streams.back());
    for (const cudaStream_t stream : streams) finish(stream);
    for (size_t i = 1; i < streams.size(); ++i) cudaStreamDestroy(streams[i]);
  });
}

// Sums over eight communicators: each rank begins with the four that the other rank uses last.
void communicate(int ctas) {
  std::vector<ncclUniqueId> ids;
  for (int i = 0; i < kComms; ++i) ids.push_back(new_id());
  std::barrier<> begun(2);
  on_two_ranks([&](const Rank& self) {
    std::vector<ncclComm_t> comms;
    std::vector<cudaStream_t> streams;
    for (int i = 0; i < kComms; ++i) {
      comms.push_back(
          communicator(("group " + std::to_string(i)).c_str(), self.rank, ctas, ids[static_cast<size_t>(i)]));
      streams.push_back(new_stream());
    }
    const auto all_reduce = [&](int i) {
      const auto at = static_cast<size_t>(i);
      int* const data = self.data + 4 + 2 * i;
      ASSERT_EQ(ncclAllReduce(data, data, 1, ncclInt64, ncclMax, comms[at], streams[at]), ncclSuccess);
    };
    for (int i = 0; i < kComms; ++i) {
      all_reduce(self.rank == 0 ? i : kComms - 1 - i);
      if (i != kComms / 2 - 1) continue;
      const int held = kComms / 2 * (ctas > 0 ? ctas : 32);
      while (emulation::free_multiprocessors(self.rank) > emulation::kMultiprocessors - held) std::this_thread::yield();
      begun.arrive_and_wait();
    }
    for (const cudaStream_t stream : streams) finish(stream);
    for (int i = 0; i < kComms; ++i) {
      cudaStreamDestroy(streams[static_cast<size_t>(i)]);
      ncclCommFinalize(comms[static_cast<size_t>(i)]);
      ncclCommDestroy(comms[static_cast<size_t>(i)]);
    }
  });
}

struct StrictDriver : testing::Test {
  StrictDriver() { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
  void SetUp() override {
    if (cuda_device_count() < 2) GTEST_SKIP() << "no two GPUs";
    emulation::driver().strict = true;
  }
};
using StrictDriverDeathTest = StrictDriver;

TEST_F(StrictDriverDeathTest, LazyLoadingWaitsForAPostedReceive) {
  load_while_a_receive_is_posted(true);
  EXPECT_DEATH(load_while_a_receive_is_posted(false), "a deadlock(.|\n)*the first use of a kernel, which waits");
}

TEST_F(StrictDriverDeathTest, AFullChannelBlocksTheOtherRanksLaunches) {
  launch_far_ahead(true);
  EXPECT_DEATH(launch_far_ahead(false), "a deadlock(.|\n)*room in a channel");
}

TEST_F(StrictDriverDeathTest, MoreStreamsThanChannelsWaitForEachOther) {
  use_streams(32);
  EXPECT_DEATH(use_streams(33), "a deadlock(.|\n)*a stream, which shares its channel");
}

TEST_F(StrictDriverDeathTest, CommunicatorsThatExceedTheMultiprocessorsAreNamed) {
  communicate(16);
  EXPECT_DEATH(communicate(0),
               "a deadlock(.|\n)*'group .' waits for 32 of 132 multiprocessors of GPU ., .*'group .' 32");
}

TEST_F(StrictDriverDeathTest, KnowsTwoWords) {
  const auto start = [](const char* value) {
    setenv("TRIVET_EMULATED_DRIVER", value, 1);
    const emulation::Driver driver;
    std::exit(driver.strict ? 3 : 4);
  };
  EXPECT_EXIT(start("strict"), testing::ExitedWithCode(3), "");
  EXPECT_EXIT(start("lenient"), testing::ExitedWithCode(4), "");
  EXPECT_DEATH(start("Strict"), "TRIVET_EMULATED_DRIVER: found Strict, expected strict or lenient");
}

// ---- multiprocessors held by communication

constexpr int kTiles = 7 * emulation::kMultiprocessors;

__global__ void static_tiles_kernel(int* taken) {
  for (int tile = static_cast<int>(blockIdx.x); tile < kTiles; tile += static_cast<int>(gridDim.x)) {
    __syncthreads();
    if (threadIdx.x == 0) ++taken[tile];
  }
}
__global__ void counted_tiles_kernel(int* taken, int* counter) {
  __shared__ int tile;
  for (;;) {
    if (threadIdx.x == 0) tile = atomicAdd(counter, 1);
    __syncthreads();
    const int mine = tile;
    __syncthreads();
    if (mine >= kTiles) return;
    if (threadIdx.x == 0) ++taken[mine];
  }
}

TEST_F(StrictDriver, CountsTheTurnsOfAPersistentGridBesideCommunication) {
  constexpr unsigned int kBlocks = emulation::kMultiprocessors;
  const cudaStream_t stream = new_stream();
  int* data = nullptr;
  check_cuda(cudaMalloc(reinterpret_cast<void**>(&data), (kTiles + 1) * sizeof(int)), "cudaMalloc");
  emulation::driver().counts = true;
  const auto time_of = [&](bool counted) {
    check_cuda(cudaMemsetAsync(data, 0, (kTiles + 1) * sizeof(int), stream), "cudaMemsetAsync");
    if (counted) launch_kernel(counted_tiles_kernel, {kBlocks, 32, stream}, data, data + kTiles);
    else launch_kernel(static_tiles_kernel, {kBlocks, 32, stream}, data);
    std::vector<int> taken(kTiles);
    check_cuda(cudaMemcpyAsync(taken.data(), data, kTiles * sizeof(int), cudaMemcpyDeviceToHost, stream), "copy");
    EXPECT_EQ(taken, std::vector<int>(kTiles, 1));
    return static_cast<double>(emulation::driver().grid_time);
  };
  const double of_blocks = time_of(false), of_tiles = time_of(true);
  ASSERT_TRUE(emulation::take_multiprocessors(0, 16, "NCCL"));
  const double of_blocks_beside = time_of(false), of_tiles_beside = time_of(true);
  emulation::give_multiprocessors(0, 16, "NCCL");
  emulation::driver().counts = false;
  EXPECT_NEAR(of_blocks_beside / of_blocks, 2, 0.1);
  // Relative to the shortest possible time on the remaining multiprocessors, 132/116.
  constexpr double kFewer = static_cast<double>(kBlocks) / (kBlocks - 16);
  EXPECT_LE(of_tiles_beside / of_tiles, 1.1 * kFewer);
  std::printf("turns beside communication: %.2f x with tiles by block, %.2f x with a counter (at least %.2f x)\n",
              of_blocks_beside / of_blocks, of_tiles_beside / of_tiles, kFewer);
  cudaFree(data);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace trivet
