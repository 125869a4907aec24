// Panels of bf16 for the tile unit (AMX) of x86 servers from Sapphire Rapids on (see panels.h).
//
// A step is two tiles of 16 rows of 64 bytes. Left, row i of a tile holds k = 0…31 of matrix row i; right, row p holds
// k = 2p, 2p + 1 of matrix columns 0…15, pair by pair. The one is the other transposed in units of 32 bits.
#pragma once

#include "kernels/cpu/panels_f32.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BW__) && defined(__AVX512BF16__) && \
    defined(__linux__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace trivet {

// Whether the kernel lets this process use the tile unit, which it wants to be asked for once.
inline bool amx_available() {
  static const bool granted = [] {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return granted;
}

struct AmxPanels {
  using Element = bf16;

  // The tile unit of this thread, set up for eight full tiles.
  struct Session {
    Session() {
      struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14]{};
        uint16_t row_bytes[16]{};
        uint8_t rows[16]{};
      } config;
      for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = 64, config.rows[tile] = 16;
      asm volatile("" ::"r"(&config) : "memory");  // GCC 12 believes that only its first 8 bytes are read
      _tile_loadconfig(&config);
    }
    ~Session() { _tile_release(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  template <Side side>
  static void pack_rows(const bf16* from, int64_t ld, int64_t rows, int64_t k, bf16* to) {
    for (int64_t k0 = 0; k0 < k; k0 += kPanel) {
      const __mmask32 mask = lanes(k - k0);
      for (int64_t r0 = 0; r0 < kPanel; r0 += 16, to += kTile) {
        Tile x;
        for (int64_t i = 0; i < 16; ++i) x[i] = load(r0 + i < rows ? mask : 0, from + (r0 + i) * ld + k0);
        if constexpr (side == Side::right) transpose(x);
        for (int64_t i = 0; i < 16; ++i) store(to + kPanel * i, x[i]);
      }
    }
  }

  template <Side side>
  static void pack_columns(const bf16* from, int64_t ld, int64_t rows, int64_t k, bf16* to) {
    const __mmask32 mask = lanes(rows);
    for (int64_t k0 = 0; k0 < k; k0 += kPanel, to += 2 * kTile) {
      const auto row = [&](int64_t i) { return load(k0 + i < k ? mask : 0, from + (k0 + i) * ld); };
      Tile x, y;
      for (int64_t pair = 0; pair < 16; ++pair) {
        const Bits even = row(2 * pair), odd = row(2 * pair + 1);
        x[pair] = pairs<0, 32>(even, odd);
        y[pair] = pairs<16, 48>(even, odd);
      }
      if constexpr (side == Side::left) transpose(x), transpose(y);
      for (int64_t i = 0; i < 16; ++i) {
        store(to + kPanel * i, x[i]);
        store(to + kTile + kPanel * i, y[i]);
      }
    }
  }

  // Four tiles of sums, two of a and two of b: each tile that is loaded is used twice.
  template <bool accumulate>
  static void multiply(const bf16* a, const bf16* b, int64_t steps, float* c) {
    // The compiler does not know that tile loads read memory: what was packed has to be written by now.
    asm volatile("" ::: "memory");
    constexpr int64_t kRowBytes = kPanel * sizeof(float), kHalf = 16 * kPanel;
    if constexpr (accumulate) {
      _tile_loadd(0, c, kRowBytes);
      _tile_loadd(1, c + 16, kRowBytes);
      _tile_loadd(2, c + kHalf, kRowBytes);
      _tile_loadd(3, c + kHalf + 16, kRowBytes);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t step = 0; step < steps; ++step, a += 2 * kTile, b += 2 * kTile) {
      _tile_loadd(4, a, 64);
      _tile_loadd(6, b, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + kTile, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + kTile, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, kRowBytes);
    _tile_stored(1, c + 16, kRowBytes);
    _tile_stored(2, c + kHalf, kRowBytes);
    _tile_stored(3, c + kHalf + 16, kRowBytes);
  }

  static void put_left(int64_t row, const PanelRow& x, bf16* to) { store(to + kPanel * row, rounded(x.v[0], x.v[1])); }
  static void put_right(int64_t pair, const PanelRow& x, const PanelRow& y, bf16* to) {
    for (int64_t i = 0; i < 2; ++i) {
      const Bits both = rounded(x.v[i], y.v[i]);
      store(to + kTile * i + kPanel * pair, pairs<0, 16>(both, both));
    }
  }

 private:
  static constexpr int64_t kTile = 16 * 32;
  using Tile = Bits[16];

  static __mmask32 lanes(int64_t n) { return n >= kPanel ? ~__mmask32{0} : (__mmask32{1} << n) - 1; }

  static Bits load(__mmask32 mask, const bf16* from) {
    return std::bit_cast<Bits>(_mm512_maskz_loadu_epi16(mask, from));
  }
  static void store(bf16* to, Bits x) { _mm512_store_si512(to, std::bit_cast<__m512i>(x)); }

  // Interleaves two runs of the 64 elements of x and y: those from `even` on and those from `odd` on.
  template <int even, int odd>
  static Bits pairs(Bits x, Bits y) {
    using Elements = uint16_t __attribute__((vector_size(64)));
    return [&]<int... i>(std::integer_sequence<int, i...>) {
      return std::bit_cast<Bits>(__builtin_shufflevector(std::bit_cast<Elements>(x), std::bit_cast<Elements>(y),
                                                         (i % 2 ? odd + i / 2 : even + i / 2)...));
    }
    (std::make_integer_sequence<int, 32>());
  }

  static Bits rounded(Floats low, Floats high) { return std::bit_cast<Bits>(_mm512_cvtne2ps_pbh(high, low)); }
};

}  // namespace trivet

#else

namespace trivet {
inline bool amx_available() { return false; }
using AmxPanels = F32Panels;  // never used, but it compiles
}  // namespace trivet

#endif

namespace trivet {

// f.template operator()<Panels, T>() for the panels that suit tensors of this type on this machine.
template <class F>
void with_panels(DType dtype, const F& f) {
  if (dtype == DType::f32) f.template operator()<F32Panels, float>();
  else if (amx_available()) f.template operator()<AmxPanels, bf16>();
  else f.template operator()<F32Panels, bf16>();
}

}  // namespace trivet
