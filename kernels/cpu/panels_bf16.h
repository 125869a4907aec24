// bf16 panels that interleave k in pairs (see panels.h), for instructions that add the products of two k at a time in
// fp32: AMX's (panels_amx.h) and AVX-512-BF16's vdpbf16ps, below.
//
// One step of a left panel is [32 rows, 32 k]. One step of a right panel consists of two halves of 16 columns, each
// [16 pairs of k, 16 columns, 2]: each layout is the other one transposed in 32-bit units.
#pragma once

#include "kernels/cpu/panels_f32.h"

#if defined(__AVX512BF16__)

namespace trivet::TRIVET_CPU {

struct PairPanels {
  using Element = bf16;

  template <Side side>
  static void pack_rows(const bf16* from, int64_t ld, int64_t rows, int64_t k, bf16* to) {
    for (int64_t k0 = 0; k0 < k; k0 += kPanel) {
      const __mmask32 mask = lanes(k - k0);
      for (int64_t r0 = 0; r0 < kPanel; r0 += 16, to += kHalf) {
        HalfStep x;
        for (int64_t i = 0; i < 16; ++i) x[i] = load(r0 + i < rows ? mask : 0, from + (r0 + i) * ld + k0);
        if constexpr (side == Side::right) transpose(x);
        for (int64_t i = 0; i < 16; ++i) store(to + kPanel * i, x[i]);
      }
    }
  }

  template <Side side>
  static void pack_columns(const bf16* from, int64_t ld, int64_t rows, int64_t k, bf16* to) {
    const __mmask32 mask = lanes(rows);
    for (int64_t k0 = 0; k0 < k; k0 += kPanel, to += 2 * kHalf) {
      const auto row = [&](int64_t i) { return load(k0 + i < k ? mask : 0, from + (k0 + i) * ld); };
      HalfStep x, y;
      for (int64_t pair = 0; pair < 16; ++pair) {
        const Bits even = row(2 * pair), odd = row(2 * pair + 1);
        x[pair] = pairs<0, 32>(even, odd);
        y[pair] = pairs<16, 48>(even, odd);
      }
      if constexpr (side == Side::left) transpose(x), transpose(y);
      for (int64_t i = 0; i < 16; ++i) {
        store(to + kPanel * i, x[i]);
        store(to + kHalf + kPanel * i, y[i]);
      }
    }
  }

  static void put_left(int64_t row, const PanelRow& x, bf16* to) { store(to + kPanel * row, rounded(x.v[0], x.v[1])); }
  static void put_right(int64_t pair, const PanelRow& x, const PanelRow& y, bf16* to) {
    for (int64_t i = 0; i < 2; ++i) {
      const Bits both = rounded(x.v[i], y.v[i]);
      store(to + kHalf * i + kPanel * pair, pairs<0, 16>(both, both));
    }
  }

 protected:
  static constexpr int64_t kHalf = kBlock / 2;
  using HalfStep = Bits[16];

  static __mmask32 lanes(int64_t n) { return n >= kPanel ? ~__mmask32{0} : (__mmask32{1} << n) - 1; }

  static Bits load(__mmask32 mask, const bf16* from) {
    return std::bit_cast<Bits>(_mm512_maskz_loadu_epi16(mask, from));
  }
  static void store(bf16* to, Bits x) { _mm512_store_si512(to, std::bit_cast<__m512i>(x)); }

  // Interleaves two runs of 16 of the 64 elements of x and y: one starts at `even`, the other at `odd`.
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

// A sum adds a pair's two products one after the other, odd k first. Each addition rounds to fp32 and treats subnormals
// as zero. Pairs are added in the order of k. So the sum's bits depend on nothing else.
struct DotPanels : PairPanels {
  struct Session {};
  static constexpr int64_t kSliceSteps = kWholeBlock;

  template <bool accumulate>
  static void multiply(const bf16* a, const bf16* b, int64_t steps, float* c, int64_t rows = kPanel) {
    for_row_groups(rows, [&]<int size>(int64_t row) TRIVET_NOINLINE {
      with_sums<accumulate, size>(c + row * kPanel, [&](auto& sums) TRIVET_INLINE {
        const bf16 *left = a + row * kPanel, *right = b;
        for (int64_t step = 0; step < steps; ++step, left += kBlock, right += kBlock)
          for (int64_t pair = 0; pair < kPanel; pair += 2) add_pair(left + pair, right + pair * 16, sums);
      });
    });
  }

 private:
  template <int rows>
  TRIVET_INLINE static void add_pair(const bf16* a, const bf16* b, Floats (&sums)[rows][2]) {
    const auto x = std::bit_cast<__m512bh>(_mm512_load_si512(b)),
               y = std::bit_cast<__m512bh>(_mm512_load_si512(b + kHalf));
    unrolled<rows>([&](auto i) TRIVET_INLINE {
      int32_t pair;
      std::memcpy(&pair, a + i * kPanel, sizeof pair);
      const auto left = std::bit_cast<__m512bh>(_mm512_set1_epi32(pair));
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], left, x);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], left, y);
    });
  }
};

}  // namespace trivet::TRIVET_CPU

#else

namespace trivet::TRIVET_CPU {
using DotPanels = F32Panels;  // these widen bf16 to fp32
}  // namespace trivet::TRIVET_CPU

#endif
