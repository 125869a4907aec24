// PTX instructions that CUDA C++ does not expose, one function each, and dynamic shared memory. (A build that emulates
// CUDA replaces this file with tests/emulation/kernels/cuda/ptx.cuh.)
#pragma once

#include <cstdint>

namespace trivet {

// The block's dynamic shared memory, aligned for 16-byte vectors.
template <class T>
__device__ inline T* dynamic_shared() {
  extern __shared__ uint4 memory[];
  return reinterpret_cast<T*>(memory);
}

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- called by a whole warp

// Loads four matrices of 8 x 8 two-byte elements: lane l passes the address of row l % 8 of matrix l / 8, and receives
// in to[i], for each matrix i, columns 2t and 2t + 1 of row g, with g = l / 4, t = l % 4.
__device__ inline void ldmatrix(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
// The same for the transposed matrices: rows 2t and 2t + 1 of column g.
__device__ inline void ldmatrix_transposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// sums[16, 8] fp32 += a[16, 16] b[16, 8], bf16. tensor_core.cuh says which lane holds what.
__device__ inline void multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- called by one thread

// Asynchronous copies of 16 or 4 bytes to shared memory; zeros if `there` is false.
__device__ inline void cp_async_16(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
__device__ inline void cp_async_4(void* to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :
               : "r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0)
               : "memory");
}
// Commits this thread's copies since the last call as a group.
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all groups of this thread except the last `pending` have arrived.
template <int pending>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// 2^x, from which kernels compute exp.
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace trivet
