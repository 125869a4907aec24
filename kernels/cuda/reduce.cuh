// Sums and maxima over the threads of a warp, a part of it or a block, by a fixed tree: every thread gets the result,
// and a second run gives the same bits.
#pragma once

namespace trivet {

inline constexpr unsigned int kAllLanes = 0xffffffffu;

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ unsigned int operator()(unsigned int a, unsigned int b) const { return max(a, b); }
};

template <class T, class Op>
__device__ inline T warp_reduce(T x, Op op) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = op(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}

// Reduces over the threads of a block that differ in threadIdx.x. REQUIRES: they are a team of at most 32 threads (a
// power of two), of which a warp may hold several, and the whole warp calls this; or they are all threads of a block of
// whole warps, and all of them call this. `shared` holds 32 elements, and the next call may reuse it. `none`: the
// identity of `op`.
template <class T, class Op>
__device__ inline T block_reduce(T x, Op op, T none, T* shared) {
  if (blockDim.x <= 32) {
    for (int offset = static_cast<int>(blockDim.x) / 2; offset > 0; offset /= 2)
      x = op(x, __shfl_xor_sync(kAllLanes, x, offset));
    return x;
  }
  x = warp_reduce(x, op);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  __syncthreads();  // the last call's readers are done
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return warp_reduce(lane < static_cast<int>(blockDim.x) / 32 ? shared[lane] : none, op);
}

}  // namespace trivet
