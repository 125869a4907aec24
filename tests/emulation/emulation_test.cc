// The emulated GPU itself: correct programs run on it, and incorrect ones are detected. For emulated builds.
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cuda.h>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "tests/emulation/runtime.h"

namespace trivet {
namespace {

struct Numbers {
  explicit Numbers(size_t count) : count(count) {
    check_cuda(cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof *data), "cudaMalloc");
  }
  ~Numbers() { cudaFree(data); }
  std::vector<float> host(cudaStream_t stream) const {
    std::vector<float> result(count);
    check_cuda(cudaMemcpyAsync(result.data(), data, count * sizeof *data, cudaMemcpyDeviceToHost, stream),
               "cudaMemcpyAsync");
    return result;
  }
  size_t count;
  float* data = nullptr;
};

struct OnAStream : testing::Test {
  OnAStream() { check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~OnAStream() override { cudaStreamDestroy(stream); }
  cudaStream_t stream = nullptr;
};
using Emulation = OnAStream;
using EmulationDeathTest = OnAStream;

// ---- kernels, correct and incorrect

// Each block adds its number, from 1 on, to an integer.
template <bool atomic>
__global__ void sum_kernel(float* to) {
  int* const sum = reinterpret_cast<int*>(to);
  const int number = static_cast<int>(blockIdx.x) + 1;
  if (atomic) atomicAdd(sum, number);
  else *sum += number;
}

// Each thread writes its number for another thread of the block.
template <bool barrier>
__global__ void mirror_kernel(float* to) {
  __shared__ float shared[256];
  shared[threadIdx.x] = -1;
  __syncthreads();
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (barrier) __syncthreads();
  to[blockIdx.x * blockDim.x + threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

// The same for another thread of the warp.
template <bool barrier>
__global__ void neighbour_kernel(float* to) {
  __shared__ float shared[32];
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (barrier) __syncwarp();
  to[threadIdx.x] = shared[threadIdx.x ^ 1];
}

template <bool waits>
__global__ void copy_kernel(const float* from, float* to) {
  float* const shared = dynamic_shared<float>();
  cp_async_16(shared + 4 * threadIdx.x, from + 4 * threadIdx.x, threadIdx.x % 2 == 0);
  cp_async_commit_group();
  if (waits) cp_async_wait_group<0>();
  for (int i = 0; i < 4; ++i) to[4 * threadIdx.x + i] = shared[4 * threadIdx.x + i];
}

__global__ void divergent_kernel(float* to) {
  float x = 1;
  if (threadIdx.x % 2 == 0) x = __shfl_xor_sync(0xffffffffu, x, 1);
  else __syncwarp();
  to[threadIdx.x] = x;
}
__global__ void half_a_warp_kernel(float* to) {
  if (threadIdx.x < 16) return;
  to[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}
__global__ void barrier_in_a_branch_kernel(float* to) {
  if (threadIdx.x < 32) __syncthreads();
  else __syncwarp(threadIdx.x == 32 ? 0x3u : 0x1u);
  to[threadIdx.x] = 0;
}
// Thread (x, y) of a block with rows of 8 gets the number of the lane 12 away, which is in another row.
__global__ void far_lane_kernel(float* to) {
  const unsigned int thread = threadIdx.y * blockDim.x + threadIdx.x;
  to[thread] = __shfl_xor_sync(0xffffffffu, static_cast<float>(thread), 12);
}
__global__ void add_kernel(float* to, float value) { to[threadIdx.x] += value; }

TEST_F(Emulation, ThreadsMeetAtBarriers) {
  const Numbers numbers(4 * 256);
  launch_kernel(mirror_kernel<true>, {4, 256, stream}, numbers.data);
  const std::vector<float> got = numbers.host(stream);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], 255.0f - static_cast<float>(i % 256));
}

TEST_F(Emulation, AWarpIsOfThreadsCountedOverTheRowsOfABlock) {
  const Numbers numbers(64);
  launch_kernel(far_lane_kernel, {1, dim3(8, 8), stream}, numbers.data);
  const std::vector<float> got = numbers.host(stream);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], static_cast<float>(i ^ 12));
}

#if defined(__SANITIZE_THREAD__)
// Detected in any order of threads, even if the results happen to be right. ThreadSanitizer's exit code is 66.
TEST_F(EmulationDeathTest, AMissingBarrierIsARace) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const Numbers numbers(512);
  const auto run = [&](void (*kernel)(float*), unsigned int threads) {
    for (int i = 0; i < 2; ++i) launch_kernel(kernel, {2, threads, stream}, numbers.data);
    cudaStreamSynchronize(stream);
    std::exit(0);
  };
  EXPECT_EXIT(run(mirror_kernel<true>, 256), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run(mirror_kernel<false>, 256), testing::ExitedWithCode(66), "data race.*mirror_kernel");
  EXPECT_EXIT(run(neighbour_kernel<true>, 32), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run(neighbour_kernel<false>, 32), testing::ExitedWithCode(66), "data race.*neighbour_kernel");
}
#else
TEST_F(Emulation, AMissingBarrierShows) {
  const Numbers numbers(4 * 256);
  launch_kernel(mirror_kernel<false>, {4, 256, stream}, numbers.data);
  const std::vector<float> got = numbers.host(stream);
  EXPECT_GT(std::count(got.begin(), got.end(), -1.0f), 0);
}
#endif

TEST_F(Emulation, AMissingWaitForACopyShows) {
  const Numbers from(128), to(128);
  check_cuda(cudaMemsetAsync(from.data, 0x3f, 128 * sizeof(float), stream), "cudaMemsetAsync");
  launch_kernel(copy_kernel<true>, {1, 32, stream, 512}, from.data, to.data);
  std::vector<float> got = to.host(stream);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], i / 4 % 2 == 0 ? from.host(stream)[0] : 0.0f);
  launch_kernel(copy_kernel<false>, {1, 32, stream, 512}, from.data, to.data);
  got = to.host(stream);
  for (const float value : got) EXPECT_TRUE(std::isnan(value));
}

TEST_F(EmulationDeathTest, WhatHasNoMeaningEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const Numbers numbers(64);
  const auto run = [&](void (*kernel)(float*), unsigned int threads) {
    launch_kernel(kernel, {1, threads, stream}, numbers.data);
    cudaStreamSynchronize(stream);
  };
  EXPECT_DEATH(run(divergent_kernel, 32), "different instructions: .*__s.* and __s");
  EXPECT_DEATH(run(half_a_warp_kernel, 32), "__shfl_xor_sync: lane .* has ended");
  EXPECT_DEATH(run(barrier_in_a_branch_kernel, 64), "in its own mask|different instructions|wait, for ever");
  check_cuda(cudaMemsetAsync(numbers.data, 0, sizeof(float), stream), "cudaMemsetAsync");
  launch_kernel(sum_kernel<true>, {3, 1, stream}, numbers.data);
  EXPECT_EQ(std::bit_cast<int>(numbers.host(stream)[0]), 6);
  EXPECT_DEATH(
      {
        launch_kernel(sum_kernel<false>, {3, 1, stream}, numbers.data);
        cudaStreamSynchronize(stream);
      },
      "two blocks of a grid write byte . of 256 bytes");
  std::vector<float> host(65);
  EXPECT_DEATH(cudaMemcpyAsync(host.data(), numbers.data, 65 * 4, cudaMemcpyDeviceToHost, stream), "beyond the end");
}

// ---- the runtime

TEST_F(Emulation, RefusesWhatTheDeviceDoesNotHave) {
  const Numbers numbers(64);
  const auto status_of = [&](const Launch& how) {
    cudaLaunchConfig_t config{};
    config.gridDim = how.grid;
    config.blockDim = how.block;
    config.stream = stream;
    config.dynamicSmemBytes = how.shared;
    return cudaLaunchKernelEx(&config, add_kernel, numbers.data, 1.0f);
  };
  EXPECT_EQ(status_of({1, 1025, stream}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status_of({0, 32, stream}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status_of({dim3(1, 65536), 32, stream}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status_of({1, 32, stream, 48 * 1024}), cudaErrorInvalidValue);  // the kernel's own variables count too
  allow_shared(add_kernel, 64 * 1024);
  EXPECT_EQ(status_of({1, 32, stream, 64 * 1024}), cudaSuccess);
  EXPECT_THROW(allow_shared(add_kernel, 228 * 1024), Error);
}

TEST_F(Emulation, CopiesKnowTheSides) {
  const Numbers numbers(64);
  std::vector<float> host(64);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), numbers.data, 16, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(numbers.data, host.data(), 16, cudaMemcpyDeviceToDevice, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), host.data(), 16, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue);
  EXPECT_TRUE(std::isnan(numbers.host(stream)[0]));
}

TEST_F(Emulation, HostFunctionsMayNotCallCuda) {
  cudaError_t status = cudaSuccess;
  check_cuda(cudaLaunchHostFunc(
                 stream, [](void* result) { *static_cast<cudaError_t*>(result) = cudaSetDevice(0); }, &status),
             "cudaLaunchHostFunc");
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  EXPECT_EQ(status, cudaErrorNotPermitted);
}

TEST_F(Emulation, AGraphRunsWhatWasCaptured) {
  const Numbers numbers(32);
  check_cuda(cudaMemsetAsync(numbers.data, 0, 32 * sizeof(float), stream), "cudaMemsetAsync");
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  float value = 2;
  launch_kernel(add_kernel, {1, 32, stream}, numbers.data, value);
  value = 100;  // arguments were copied at the launch
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  EXPECT_EQ(numbers.host(stream)[31], 0.0f);
  cudaGraphExec_t exec = nullptr;
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  for (int i = 0; i < 3; ++i) check_cuda(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  EXPECT_EQ(numbers.host(stream)[31], 6.0f);

  // A call that cannot be captured invalidates the capture.
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
}

// ---- as Trivet uses it

TEST(EmulatedDriver, LoadsKernelsWhenItStarts) {
  ASSERT_GT(cuda_device_count(), 0);
  CUmoduleLoadingMode mode{};
  EXPECT_EQ(driver_function<decltype(cuModuleGetLoadingMode)>("cuModuleGetLoadingMode")(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_MODULE_EAGER_LOADING);
}

// While a gate holds the stream, nothing runs until the feeding thread polls, or has queued everything.
struct ThrottledStream : testing::Test {
  template <class F>
  void feed(const F& feed_all) {
    driver.most_queued = 0;
    driver.polls = 0;
    std::atomic<bool> fed = false;
    gate->wait(*stream);
    std::thread opener([&] {
      while (driver.polls == 0 && !fed) std::this_thread::yield();
      gate->open();
    });
    feed_all();
    fed = true;
    opener.join();
    stream->synchronize();
    EXPECT_GT(driver.polls, 0);
    EXPECT_LE(driver.most_queued, 1024);
  }
  emulation::Driver& driver = emulation::driver();
  const std::unique_ptr<Device> device = create_cuda_device(0);
  const std::unique_ptr<Event> event = device->create_event();
  const std::unique_ptr<Gate> gate = device->create_gate();
  TraceRow row{"stream"};  // outlives the stream
  const std::unique_ptr<Stream> stream = device->create_side_stream(StreamPriority::normal);
  const Numbers numbers{32};
  const std::function<void()> op = [this] {  // two kernels, like a GEMM with a bias of another type
    enqueue(*stream, {"op"}, [&](cudaStream_t raw) {
      for (int i = 0; i < 2; ++i) launch_kernel(add_kernel, {1, 32, raw}, numbers.data, 1.0f);
    });
  };
};

TEST_F(ThrottledStream, HasRoomForOps) {
  feed([&] {
    for (int i = 0; i < 1500; ++i) op();
  });
}

TEST_F(ThrottledStream, HasRoomForTheEventsOfSpans) {
  stream->set_trace_row(&row);
  feed([&] {
    for (int i = 0; i < 700; ++i) {
      const ScopedPhase phase(*stream, {"phase", Category::phase});
      op();
      stream->record(*event);
      stream->wait(*event);
    }
  });
  std::vector<Span> spans;
  row.take(spans);
  EXPECT_EQ(spans.size(), 1400u);
}

TEST_F(ThrottledStream, HasRoomForHostFunctions) {
  int done = 0;
  feed([&] {
    for (int i = 0; i < 1500; ++i) stream->run({"host"}, [&] { ++done; });
  });
  EXPECT_EQ(done, 1500);
}

TEST_F(ThrottledStream, HasRoomForTheNodesOfGraphs) {
  const auto graph = device->capture(*stream, [&] {
    for (int i = 0; i < 600; ++i) op();  // more than the queue could hold if they were queued
  });
  const auto few = device->capture(*stream, [&] {
    for (int i = 0; i < 50; ++i) op();
  });
  feed([&] {
    for (int i = 0; i < 20; ++i) few->launch(*stream);
  });
}

TEST_F(ThrottledStream, WaitsNoLongerWhenTheDeviceIsPoisoned) {
  driver.polls = 0;
  std::atomic<bool> fed = false;
  std::thread poisoner([&] {
    while (driver.polls == 0 && !fed) std::this_thread::yield();
    device->poison("the ranks have given up");
  });
  gate->wait(*stream);
  const auto feed_all = [&] {
    for (int i = 0; i < 1500; ++i) op();
  };
  EXPECT_THROW(feed_all(), Error);
  fed = true;
  gate->open();
  poisoner.join();
}

}  // namespace
}  // namespace trivet
