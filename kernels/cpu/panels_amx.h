// Panels of bf16 for the tile unit (AMX) of x86 servers from Sapphire Rapids on (see panels_bf16.h). A step is two
// tiles of 16 rows of 64 bytes: half the rows of a left panel, half the columns of a right one.
#pragma once

#include "kernels/cpu/panels_bf16.h"

#if defined(__AMX_BF16__)
namespace trivet::TRIVET_CPU {

struct AmxPanels : PairPanels {
  static constexpr int64_t kSliceSteps = 8;  // 16 KiB: well within the L1 cache

  // Configures this thread's tile unit for eight full tiles.
  struct Session {
    Session() {
      struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14]{};
        uint16_t row_bytes[16]{};
        uint8_t rows[16]{};
      } config;
      for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = 64, config.rows[tile] = 16;
      asm volatile("" ::"r"(&config) : "memory");  // GCC 12 assumes that only its first 8 bytes are read
      _tile_loadconfig(&config);
    }
    ~Session() { _tile_release(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  // Four tiles of sums, two of a and two of b: each tile that is loaded is used twice.
  template <bool accumulate>
  static void multiply(const bf16* a, const bf16* b, int64_t steps, float* c, int64_t = kPanel) {
    // The compiler does not know that tile loads read memory: packed data must have been written by now.
    asm volatile("" ::: "memory");
    constexpr int64_t kRowBytes = kPanel * sizeof(float), kRows = 16 * kPanel;
    if constexpr (accumulate) {
      _tile_loadd(0, c, kRowBytes);
      _tile_loadd(1, c + 16, kRowBytes);
      _tile_loadd(2, c + kRows, kRowBytes);
      _tile_loadd(3, c + kRows + 16, kRowBytes);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t step = 0; step < steps; ++step, a += kBlock, b += kBlock) {
      _tile_loadd(4, a, 64);
      _tile_loadd(6, b, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + kHalf, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + kHalf, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, kRowBytes);
    _tile_stored(1, c + 16, kRowBytes);
    _tile_stored(2, c + kRows, kRowBytes);
    _tile_stored(3, c + kRows + 16, kRowBytes);
  }
};

}  // namespace trivet::TRIVET_CPU

#endif

namespace trivet::TRIVET_CPU {

#if defined(__AMX_BF16__)
using Bf16Panels = AmxPanels;
#else
using Bf16Panels = DotPanels;
#endif

// Calls f.template operator()<Panels, T>() with the panels that suit tensors of this type on this instruction set.
template <class F>
void with_panels(DType dtype, const F& f) {
  if (dtype == DType::f32) f.template operator()<F32Panels, float>();
  else f.template operator()<Bf16Panels, bf16>();
}

}  // namespace trivet::TRIVET_CPU
