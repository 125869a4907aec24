// The counterpart of kernels/cuda/ptx_hopper.cuh for an emulated GPU (warpgroup.h). It precedes that file in an
// emulated build's search path.
#pragma once

#include <cstdint>
#include <cuda.h>

#include "kernels/cuda/ptx.cuh"
#include "tests/emulation/warpgroup.h"

namespace trivet {

inline unsigned char* dynamic_shared_1024() { return dynamic_shared<unsigned char>(); }
[[noreturn]] inline void trap() { emulation::broken("trap"); }

using Barrier = uint64_t;

inline void initialize(Barrier* barrier, uint32_t arrivals) { emulation::barrier_initialize(barrier, arrivals); }
inline void publish_barriers() { emulation::fence_initialized_barriers(); }
inline void arrive(Barrier* barrier) { emulation::barrier_arrive(barrier, 0); }
inline void arrive_and_expect(Barrier* barrier, uint32_t bytes) { emulation::barrier_arrive(barrier, bytes); }
inline void wait_for(Barrier* barrier, uint32_t parity) { emulation::barrier_wait(barrier, parity); }

using TileMap = CUtensorMap;

inline void copy_tile(void* to, const TileMap& map, int column, int matrix, int row, Barrier* barrier) {
  emulation::copy_tile(to, &map, column, matrix, row, barrier);
}

inline void meet(int barrier, int threads) { emulation::named_barrier(barrier, threads, true); }
inline void arrive_at(int barrier, int threads) { emulation::named_barrier(barrier, threads, false); }

namespace ptx {

inline void whole_warp(const char* what) {
  int nothing = 0;
  emulation::meet_warp(0xffffffffu, what, &nothing, nullptr);
}

// Ends the process if a product of these sums is still pending after the wait that names them.
template <int kBlocks>
void expect_done(const float (&sums)[kBlocks][4]) {
  if (emulation::product_pends(&sums[0][0])) emulation::broken("wgmma: a wait that does not cover these sums");
}
template <int kBlocks>
void expect_done(const uint32_t (&)[kBlocks][4]) {}

}  // namespace ptx

template <int kCount>
void setmaxnreg_inc() {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
  ptx::whole_warp("setmaxnreg.inc");
}
template <int kCount>
void setmaxnreg_dec() {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
  ptx::whole_warp("setmaxnreg.dec");
}

template <class... Registers>
void wgmma_fence(Registers&... registers) {
  emulation::wgmma_fence({emulation::Registers{&registers, sizeof registers}...});
}
inline void work_before_waiting(float x, float* place) { *place = x; }
inline void wgmma_commit_group() { emulation::wgmma_commit_group(); }
template <int pending, class... Registers>
void wgmma_wait_group(Registers&... registers) {
  emulation::wgmma_wait_group(pending);
  (ptx::expect_done(registers), ...);
}

template <int kN, bool kAdd>
void wgmma_ss(float (&sums)[kN / 8][4], uint64_t left, uint64_t right) {
  static_assert(kN == 64 || kN == 128);
  emulation::start_product({&sums[0][0], kN, nullptr, left, right, false, kAdd});
}
template <int kN>
void wgmma_rs(float (&sums)[kN / 8][4], const uint32_t (&left)[4], uint64_t right) {
  static_assert(kN == 64 || kN == 96 || kN == 128);
  emulation::start_product({&sums[0][0], kN, left, 0, right, true, true});
}

}  // namespace trivet
