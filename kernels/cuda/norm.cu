// The gradient norm: an exact sum of squares (kernels/exact_sum.h), and the clipping scale. The bins are
// integers, so their sums do not depend on the order of the blocks, and equal the CPU's to the last bit.
//
// The squares are summed as in kernels/cpu/norm.cc, in runs of 512 elements, one run per warp, 16 elements per lane: in
// doubles without rounding, by splitting each square at a bit position that the whole warp shares. That takes five
// double operations and some fifteen others per element; the time to read four bytes suffices for about 27.
#include "base/piece.h"
#include "kernels/cuda/chunk_table.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/exact_sum.h"

namespace trivet {
namespace {

// ---- device helpers

constexpr int kLaneElements = 16, kRun = 32 * kLaneElements;
// A lane adds 16 parts of at most 2^45 q each, so its sum moves by at most 2^49 q: less than the 2^51 q between its
// anchor, 1.5 * 2^52 q, and the power of two on either side. See kernels/cpu/norm.cc.
constexpr int kLevelBits = 45;
// A level's remainders are added without another split if all 512 together stay below 2^56 units.
constexpr int kRestBits = 45;

// 2^exponent. REQUIRES: the result is a normal number.
__device__ inline double power_of_two(int exponent) {
  return __longlong_as_double(static_cast<long long>(1023 + exponent) << 52);
}

__device__ inline double square(float x) {
  const double wide = x;
  return wide * wide;  // exact: 48 bits
}

// bins += the lanes' sums, which are multiples of 2^exponent and too large by `anchor`. Called by the whole warp.
__device__ inline void flush(double sum, double anchor, int exponent, int64_t* bins) {
  auto units = static_cast<long long>((sum - anchor) * power_of_two(-exponent));  // an integer
  units = warp_reduce(units, Sum());
  if (threadIdx.x % 32 == 0) exact_add(bins, units, exponent);
}

// bins += the squares of the warp's 512 elements, of which this lane holds x. Called by the whole warp.
__device__ void add_squares(const float (&x)[kLaneElements], int64_t* bins) {
  // The largest and smallest magnitudes, as bits; the smallest minus one, so that 0 wraps around and is ignored.
  unsigned int largest = 0, smallest = ~0u;
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) {
    const unsigned int magnitude = __float_as_uint(x[i]) & 0x7fffffffu;
    largest = max(largest, magnitude);
    smallest = min(smallest, magnitude - 1);
  }
  largest = __reduce_max_sync(kAllLanes, largest);
  smallest = __reduce_min_sync(kAllLanes, smallest);
  if (largest == 0) return;
  if (largest >= 0x7f800000u) {  // not all are finite: lane by lane, using the definition
    for (int lane = 0; lane < 32; ++lane) {
      if (static_cast<int>(threadIdx.x) % 32 == lane) {
#pragma unroll
        for (int i = 0; i < kLaneElements; ++i) exact_add_square(bins, x[i]);
      }
      __syncwarp();
    }
    return;
  }
  const int largest_field = static_cast<int>(largest >> 23);
  const int smallest_field = max(1, static_cast<int>((smallest + 1) >> 23));
  const int top = 2 * (largest_field - 126), bottom = 2 * (smallest_field - 150);

  // All squares are less than 2^top, and multiples of 2^bottom.
  int exponent = top - kLevelBits;
  double anchor = 1.5 * power_of_two(52 + exponent), high = anchor, low = 0;
  if (exponent - 1 - bottom <= kRestBits) {
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) low += cut_at_anchor(high, square(x[i]));
    flush(high, anchor, exponent, bins);
    flush(low, 0, bottom, bins);
    return;
  }
  // Widely differing magnitudes: split level by level.
  double rest[kLaneElements];
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) rest[i] = cut_at_anchor(high, square(x[i]));
  flush(high, anchor, exponent, bins);
  for (int bound = exponent - 1; bound - bottom > kRestBits; bound = exponent - 1) {  // |rest| <= 2^bound
    exponent = bound - kLevelBits;
    high = anchor = 1.5 * power_of_two(52 + exponent);
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) rest[i] = cut_at_anchor(high, rest[i]);
    flush(high, anchor, exponent, bins);
  }
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) low += rest[i];
  flush(low, 0, bottom, bins);
}

// ---- kernels

constexpr int kWarps = kBlockThreads / 32;

struct NormInput {
  const float* x;
  int64_t n;
  bool vectors;  // x is aligned to 16 bytes
};
using NormInputs = ChunkTable<NormInput, piece(400, 3)>;  // a chunk is a run of 512 elements

// Each warp sums every (gridDim.x * kWarps)-th run into its own bins; at the end the block adds its warps' bins to
// the result, one thread per bin.
__global__ void __launch_bounds__(kBlockThreads, 2)
    sum_of_squares_kernel(const __grid_constant__ NormInputs inputs, unsigned long long* result) {
  __shared__ int64_t bins[kWarps][kExactSumBins];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane < kExactSumBins) bins[warp][lane] = 0;
  __syncwarp();
  const int64_t runs = inputs.first[inputs.count];
  int which = 0;
  for (int64_t run = static_cast<int64_t>(blockIdx.x) * kWarps + warp; run < runs;
       run += static_cast<int64_t>(gridDim.x) * kWarps) {
    if (run >= inputs.first[which + 1]) which = inputs.find(run);  // rare: most elements are in a few large tensors
    const NormInput& p = inputs.entry[which];
    const int64_t begin = (run - inputs.first[which]) * kRun;
    float mine[kLaneElements];
    if (p.vectors && begin + kRun <= p.n) {
#pragma unroll
      for (int i = 0; i < kLaneElements; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(p.x + begin + i * 32 + lane * 4);
        mine[i] = four.x, mine[i + 1] = four.y, mine[i + 2] = four.z, mine[i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kLaneElements; ++i) {
        const int64_t at = begin + i * 32 + lane;
        mine[i] = at < p.n ? p.x[at] : 0.0f;
      }
    }
    add_squares(mine, bins[warp]);
  }
  __syncthreads();
  if (threadIdx.x >= kExactSumBins) return;
  int64_t total = 0;
  for (int other = 0; other < kWarps; ++other) total += bins[other][threadIdx.x];
  if (total != 0) atomicAdd(result + threadIdx.x, static_cast<unsigned long long>(total));  // modulo 2^64: signs too
}

__global__ void canonicalize_kernel(int64_t* bins) { exact_canonicalize(bins); }

// One thread. The same operations as on the CPU, none fused, so that all ranks clip identically.
__global__ void clip_scale_kernel(const int64_t* bins, float multiplier, float max_norm, float* norm,
                                  float* grad_scale) {
  const double value = __dmul_rn(multiplier, sqrt(exact_total(bins)));
  norm[0] = static_cast<float>(value);
  grad_scale[0] = clipped(multiplier, max_norm, value);
}

// Also one thread.
__global__ void count_labels_kernel(const float* missing, const float* norm, double labels, float max_norm,
                                    float* numbers, int n, float* grad_scale) {
  const double share = counted_share(missing[0], labels);
  for (int i = 0; i < n; ++i) numbers[i] = static_cast<float>(share * numbers[i]);
  grad_scale[0] = clipped(share, max_norm, __dmul_rn(share, norm[0]));
}

}  // namespace

// ---- launchers

void CudaOps::launch(const op::SumOfSquares& op, cudaStream_t stream) {
  const auto input_of = [](const Tensor& x) {
    return std::pair(NormInput{x.as<float>(), x.numel(), aligned(x)}, ceil_div(x.numel(), kRun));
  };
  launch_tables<NormInputs>(op.xs, input_of, [&](const NormInputs& inputs, int64_t runs) {
    const int64_t grid = std::min<int64_t>(ceil_div(runs, kWarps), 4 * multiprocessors_);
    launch_kernel(sum_of_squares_kernel, {blocks(grid, op.kSpan.name), kBlockThreads, stream}, inputs,
                  static_cast<unsigned long long*>(op.bins.data));
  });
  launch_kernel(canonicalize_kernel, {1, 1, stream}, op.bins.as<int64_t>());
}

void CudaOps::launch(const op::ClipScale& op, cudaStream_t stream) {
  launch_kernel(clip_scale_kernel, {1, 1, stream}, op.bins.as<int64_t>(), op.multiplier, op.max_norm,
                op.norm.as<float>(), op.grad_scale.as<float>());
}

void CudaOps::launch(const op::CountLabels& op, cudaStream_t stream) {
  launch_kernel(count_labels_kernel, {1, 1, stream}, op.missing.as<float>(), op.norm.as<float>(),
                static_cast<double>(op.labels), op.max_norm, op.numbers.as<float>(),
                static_cast<int>(op.numbers.numel()), op.grad_scale.as<float>());
}

}  // namespace trivet
