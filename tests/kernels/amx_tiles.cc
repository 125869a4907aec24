// The tile unit's GEMM block (kernels/cpu/panels_amx.h) on processors without a tile unit: a program of its own, which
// carries out the tile instructions in software (Intel's manual, volume 2: TILEZERO, TILELOADD, TDPBF16PS, TILESTORED).
// Operands are small integers, so sums are exact. Exits with 77 if the processor cannot run the code around them.
#include <immintrin.h>

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_release
#define _tile_zero software_zero
#define _tile_loadd software_load
#define _tile_stored software_store
#define _tile_dpbf16ps software_multiply
#define _tile_loadconfig software_configure
#define _tile_release software_release

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

namespace {

struct Tile {
  char rows[16][64];
};
Tile tiles[8];

void software_configure(const void*) { std::memset(tiles, 0, sizeof tiles); }
void software_release() { std::memset(tiles, 0, sizeof tiles); }
void software_zero(int tile) { std::memset(&tiles[tile], 0, sizeof(Tile)); }
void software_load(int tile, const void* from, int64_t stride) {
  for (int64_t row = 0; row < 16; ++row)
    std::memcpy(tiles[tile].rows[row], static_cast<const char*>(from) + row * stride, 64);
}
void software_store(int tile, void* to, int64_t stride) {
  for (int64_t row = 0; row < 16; ++row) std::memcpy(static_cast<char*>(to) + row * stride, tiles[tile].rows[row], 64);
}
float value_of(const char* bf16) {
  uint32_t bits = 0;
  std::memcpy(reinterpret_cast<char*>(&bits) + 2, bf16, 2);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
void software_multiply(int to, int a, int b) {
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 16; ++column) {
      float sum;
      std::memcpy(&sum, tiles[to].rows[row] + 4 * column, sizeof sum);
      for (int pair = 0; pair < 16; ++pair)
        for (int i = 0; i < 2; ++i)
          sum += value_of(tiles[a].rows[row] + 4 * pair + 2 * i) * value_of(tiles[b].rows[pair] + 4 * column + 2 * i);
      std::memcpy(tiles[to].rows[row] + 4 * column, &sum, sizeof sum);
    }
}

}  // namespace

#include "kernels/cpu/panels_amx.h"

namespace trivet::TRIVET_CPU {
namespace {

int failures = 0;

// c = or += a b for `steps` steps, compared with sums of the operands before they were packed.
template <bool accumulate>
void check(std::mt19937& random, int64_t steps, float* c) {
  const int64_t k = kPanel * steps;
  std::vector<bf16> a(static_cast<size_t>(kPanel * k)), b(a.size());
  for (auto* matrix : {&a, &b})
    for (bf16& x : *matrix) x = bf16(static_cast<float>(static_cast<int>(random() % 9) - 4));
  std::vector<float> expected(c, c + kBlock);
  for (int64_t i = 0; i < kPanel; ++i)
    for (int64_t j = 0; j < kPanel; ++j) {
      float& sum = expected[static_cast<size_t>(i * kPanel + j)];
      if (!accumulate) sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += static_cast<float>(a[static_cast<size_t>(i * k + l)]) *
               static_cast<float>(b[static_cast<size_t>(j * k + l)]);
    }
  bf16 *left = static_cast<bf16*>(std::aligned_alloc(64, static_cast<size_t>(k * kPanel) * sizeof(bf16))),
       *right = static_cast<bf16*>(std::aligned_alloc(64, static_cast<size_t>(k * kPanel) * sizeof(bf16)));
  AmxPanels::pack_rows<Side::left>(a.data(), k, kPanel, k, left);
  AmxPanels::pack_rows<Side::right>(b.data(), k, kPanel, k, right);
  AmxPanels::multiply<accumulate>(left, right, steps, c);
  std::free(left), std::free(right);
  if (std::memcmp(c, expected.data(), expected.size() * sizeof(float)) == 0) return;
  std::printf("%lld steps, %s: another product\n", static_cast<long long>(steps), accumulate ? "added" : "written");
  ++failures;
}

// Products one after another in one session: what a tile held before must not matter.
void check_session() {
  std::mt19937 random(7);
  alignas(64) static float c[kBlock];
  const AmxPanels::Session session;
  for (int64_t steps = 1; steps <= 3; ++steps) {
    check<false>(random, steps, c);
    check<true>(random, steps, c);
    check<false>(random, steps, c);
  }
}

}  // namespace
}  // namespace trivet::TRIVET_CPU

int main() {
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw")) return 77;
  trivet::TRIVET_CPU::check_session();
  return trivet::TRIVET_CPU::failures;
}
