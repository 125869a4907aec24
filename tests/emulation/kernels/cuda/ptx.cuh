// The counterpart of kernels/cuda/ptx.cuh for an emulated GPU, following the PTX ISA (sections "ldmatrix", "Matrix
// Fragments for mma.m16n8k16", "cp.async"). It precedes that file in an emulated build's search path.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/emulation/grid.h"
#include "tests/emulation/warpgroup.h"

namespace trivet {

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(emulation::dynamic_shared_memory());
}

inline uint32_t shared_address(const void* pointer) { return emulation::address_in_shared(pointer); }

namespace ptx {

struct LoadMatrices {
  unsigned char row[16];
  uint32_t* to;
};

// Element (row, column) of matrix i of four; the lanes hold the addresses of the rows.
inline uint16_t element(void* const (&lanes)[32], int i, int row, int column) {
  uint16_t value;
  std::memcpy(&value, static_cast<const LoadMatrices*>(lanes[8 * i + row])->row + 2 * column, sizeof value);
  return value;
}

template <bool transposed>
void load(uint32_t (&to)[4], const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) emulation::broken("ldmatrix: a row that is not aligned to 16 bytes");
  LoadMatrices mine{{}, to};
  std::memcpy(mine.row, row, sizeof mine.row);  // in this lane, so that ThreadSanitizer sees which thread reads
  emulation::meet_warp(0xffffffffu, transposed ? "ldmatrix.trans" : "ldmatrix", &mine, [](void* const(&lanes)[32]) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int g = lane / 4, t = lane % 4;
        const uint32_t low = transposed ? element(lanes, i, 2 * t, g) : element(lanes, i, g, 2 * t);
        const uint32_t high = transposed ? element(lanes, i, 2 * t + 1, g) : element(lanes, i, g, 2 * t + 1);
        static_cast<LoadMatrices*>(lanes[lane])->to[i] = low | high << 16;
      }
  });
}

struct Multiply {
  float* sums;
  const uint32_t* a;
  uint32_t b[2];
};

// Multiplies the fragments of a warp's lanes. The inner loop of entire tests, so always optimised and never sanitized.
[[gnu::optimize("O3"), gnu::no_sanitize("address", "thread", "undefined")]] inline void multiply_fragments(
    void* const (&lanes)[32]) {
  // The fragments as matrices: a[16, 16], b[16, 8]. Register r of a lane of group g holds rows g + 8 (r % 2).
  uint32_t a_bits[16][16], b_bits[16][8];
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& of = *static_cast<const Multiply*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r)
      for (int e = 0; e < 2; ++e)
        a_bits[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + e] = e == 0 ? of.a[r] << 16 : of.a[r] & 0xffff0000u;
    for (int r = 0; r < 2; ++r)
      for (int e = 0; e < 2; ++e) b_bits[2 * t + 8 * r + e][g] = e == 0 ? of.b[r] << 16 : of.b[r] & 0xffff0000u;
  }
  __builtin_memcpy(a, a_bits, sizeof a), __builtin_memcpy(b, b_bits, sizeof b);
  double products[16][8];
  for (int i = 0; i < 16; ++i) {
    double sums[8] = {};
    for (int k = 0; k < 16; ++k)  // in the order of k
      for (int j = 0; j < 8; ++j) sums[j] += static_cast<double>(a[i][k]) * static_cast<double>(b[k][j]);
    for (int j = 0; j < 8; ++j) products[i][j] = sums[j];
  }
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 4; ++e) {
      float& sum = static_cast<Multiply*>(lanes[lane])->sums[e];
      sum = static_cast<float>(sum + products[lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2]);
    }
}

}  // namespace ptx

inline void ldmatrix(uint32_t (&to)[4], const void* row) { ptx::load<false>(to, row); }
inline void ldmatrix_transposed(uint32_t (&to)[4], const void* row) { ptx::load<true>(to, row); }

inline void multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  ptx::Multiply mine{sums, a, {b0, b1}};
  emulation::meet_warp(0xffffffffu, "mma", &mine, [](void* const(&lanes)[32]) { ptx::multiply_fragments(lanes); });
}

inline void cp_async_16(void* to, const void* from, bool there) { emulation::copy_async(to, from, 16, there); }
inline void cp_async_4(void* to, const void* from, bool there) { emulation::copy_async(to, from, 4, there); }
inline void cp_async_commit_group() { emulation::close_copies(); }
template <int pending>
void cp_async_wait_group() {
  emulation::wait_copies(pending);
}

inline float power_of_2(float x) { return std::exp2(x); }

}  // namespace trivet
