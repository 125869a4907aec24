// Hopper's own instructions (sm_90a, for which only *_hopper*.cu are compiled), one function each:
// GEMMs that a warpgroup, four consecutive warps, starts on matrices in shared memory; copies of tiles to shared memory
// by the tensor memory accelerator (TMA); and the barriers on which threads wait for such copies. Section names are
// the PTX ISA's. (A build that emulates CUDA replaces this file with tests/emulation/kernels/cuda/ptx_hopper.cuh.)
#pragma once

#include <cstdint>
#include <cuda.h>

#include "kernels/cuda/ptx.cuh"

namespace trivet {

// Dynamic shared memory, declared with 1024-byte alignment, which CUDA does not guarantee.
__device__ inline unsigned char* dynamic_shared_1024() {
  extern __shared__ __align__(1024) unsigned char tiles[];
  return tiles;
}
__device__ inline void trap() { asm volatile("trap;"); }

// ---- barriers in shared memory ("mbarrier"): a phase completes when the number of threads set at initialisation, and
// all bytes that they announced, have arrived. Phases alternate between even and odd, even first.

using Barrier = uint64_t;

__device__ inline void initialize(Barrier* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Called by the thread that initialised the barriers; the block must synchronise before its threads use them.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and announces the bytes that copies will deliver in this phase.
__device__ inline void arrive_and_expect(Barrier* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// Waits until the phase with this parity is complete: the current phase, or the previous one.
__device__ inline void wait_for(Barrier* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@done bra through;\n"
      "bra again;\n"
      "through:\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// ---- copies ("cp.async.bulk.tensor")

// A TMA descriptor of a tensor in global memory: created by the host (cuda_tile_map.h), passed as a kernel parameter.
// Rows and columns past the end of the tensor arrive as zeros.
using TileMap = CUtensorMap;

// Called by one thread: copies the map's box, starting at (column, row), from matrix `matrix`. `barrier` counts the
// bytes.
__device__ inline void copy_tile(void* to, const TileMap& map, int column, int matrix, int row, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
      :
      : "r"(shared_address(to)), "l"(&map), "r"(column), "r"(matrix), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// ---- synchronisation between warps

// Hardware barriers, 1 to 15 ("bar", "barrier"), for `threads` threads. Threads that only arrive do not wait.
__device__ inline void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void arrive_at(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Called by all warps of a warpgroup: sets the number of registers per thread from here on ("setmaxnreg").
template <int kCount>
__device__ inline void setmaxnreg_inc() {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void setmaxnreg_dec() {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// ---- GEMMs of a warpgroup ("wgmma"): they run asynchronously. Until a wait covers a GEMM, no thread may touch its
// sums or change its operands. warpgroup.cuh says which thread holds what.

// Keeps the compiler, which sees no dependence on a wait, from moving accesses to these registers across this point.
__device__ inline void fence_operand(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ inline void fence_operand(uint32_t& x) { asm volatile("" : "+r"(x)::"memory"); }
template <class T, int kBlocks>
__device__ inline void fence_operand(T (&registers)[kBlocks][4]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) fence_operand(registers[n][e]);
}

// Required before GEMMs on registers (sums or left operands) that other instructions have written or read.
template <class... Registers>
__device__ inline void wgmma_fence(Registers&... registers) {
  (fence_operand(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Computes `x` before the next wait, while GEMMs run. (ptxas moves a wait ahead of arithmetic that does not depend on
// it, but not ahead of a store, so x is stored to shared memory that is never read.)
__device__ inline void work_before_waiting(float x, float* place) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared_address(place)), "f"(x) : "memory");
}
// Commits the GEMMs since the last call as a group.
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until all groups but the last `pending` are complete; `registers` are those that they use.
template <int pending, class... Registers>
__device__ inline void wgmma_wait_group(Registers&... registers) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  (fence_operand(registers), ...);
}

// A lane's asm operands: its sums of columns 8 n to 8 n + 31, with constraint `how`, and their names.
#define TRIVET_SUMS_4(how, n) how(sums[n][0]), how(sums[n][1]), how(sums[n][2]), how(sums[n][3])
#define TRIVET_SUMS_16(how, n) \
  TRIVET_SUMS_4(how, n), TRIVET_SUMS_4(how, n + 1), TRIVET_SUMS_4(how, n + 2), TRIVET_SUMS_4(how, n + 3)
#define TRIVET_NAMES_32                                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TRIVET_NAMES_48 \
  TRIVET_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TRIVET_NAMES_64 \
  TRIVET_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// The instruction: number of columns, names of its operands, whether it adds, which operands are transposed.
#define TRIVET_PRODUCT(size, names, left, right, adds, transposed)                                     \
  "wgmma.mma_async.sync.aligned.m64n" size "k16.f32.bf16.bf16 {" names "}, " left ", " right ", " adds \
  ", 1, 1, " transposed ";"

// sums[64, kN] = (kAdd ? sums : 0) + left[64, 16] right[16, kN], both in shared memory, K-major, and given by their
// descriptors. Without kAdd the sums need not be initialised.
template <int kN, bool kAdd>
__device__ inline void wgmma_ss(float (&sums)[kN / 8][4], uint64_t left, uint64_t right) {
  static_assert(kN == 64 || kN == 128);
  if constexpr (kN == 64 && kAdd)
    asm volatile(TRIVET_PRODUCT("64", TRIVET_NAMES_32, "%32", "%33", "1", "0, 0")
                 : TRIVET_SUMS_16("+f", 0), TRIVET_SUMS_16("+f", 4)
                 : "l"(left), "l"(right));
  else if constexpr (kN == 64)
    asm volatile(TRIVET_PRODUCT("64", TRIVET_NAMES_32, "%32", "%33", "0", "0, 0")
                 : TRIVET_SUMS_16("=f", 0), TRIVET_SUMS_16("=f", 4)
                 : "l"(left), "l"(right));
  else if constexpr (kAdd)
    asm volatile(TRIVET_PRODUCT("128", TRIVET_NAMES_64, "%64", "%65", "1", "0, 0")
                 : TRIVET_SUMS_16("+f", 0), TRIVET_SUMS_16("+f", 4), TRIVET_SUMS_16("+f", 8), TRIVET_SUMS_16("+f", 12)
                 : "l"(left), "l"(right));
  else
    asm volatile(TRIVET_PRODUCT("128", TRIVET_NAMES_64, "%64", "%65", "0", "0, 0")
                 : TRIVET_SUMS_16("=f", 0), TRIVET_SUMS_16("=f", 4), TRIVET_SUMS_16("=f", 8), TRIVET_SUMS_16("=f", 12)
                 : "l"(left), "l"(right));
}

// sums[64, kN] += left[64, 16] right[16, kN], with left in registers, and right row-major.
template <int kN>
__device__ inline void wgmma_rs(float (&sums)[kN / 8][4], const uint32_t (&left)[4], uint64_t right) {
  static_assert(kN == 64 || kN == 96 || kN == 128);
  if constexpr (kN == 64)
    asm volatile(TRIVET_PRODUCT("64", TRIVET_NAMES_32, "{%32, %33, %34, %35}", "%36", "1", "1")
                 : TRIVET_SUMS_16("+f", 0), TRIVET_SUMS_16("+f", 4)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
  else if constexpr (kN == 96)
    asm volatile(TRIVET_PRODUCT("96", TRIVET_NAMES_48, "{%48, %49, %50, %51}", "%52", "1", "1")
                 : TRIVET_SUMS_16("+f", 0), TRIVET_SUMS_16("+f", 4), TRIVET_SUMS_16("+f", 8)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
  else
    asm volatile(TRIVET_PRODUCT("128", TRIVET_NAMES_64, "{%64, %65, %66, %67}", "%68", "1", "1")
                 : TRIVET_SUMS_16("+f", 0), TRIVET_SUMS_16("+f", 4), TRIVET_SUMS_16("+f", 8), TRIVET_SUMS_16("+f", 12)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}

#undef TRIVET_PRODUCT
#undef TRIVET_NAMES_64
#undef TRIVET_NAMES_48
#undef TRIVET_NAMES_32
#undef TRIVET_SUMS_16
#undef TRIVET_SUMS_4

}  // namespace trivet
