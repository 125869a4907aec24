#include "kernels/cpu/blocked_product.h"
#include <cstdlib>

namespace trivet {
namespace {

// n cut into parts of equal size, as few as keep each within `most`.
int64_t even_part(int64_t n, int64_t most) {
  const int64_t parts = (n + most - 1) / most;
  return (n + parts - 1) / parts;
}
int env(const char* n, int d) { return getenv(n) ? atoi(getenv(n)) : d; }

}  // namespace

Blocking::Blocking(int64_t m, int64_t n, int64_t k, int64_t element_bytes)
    : m_panels(panels_of(m)), n_panels(panels_of(n)), steps(panels_of(k)) {
  static const int kSlice = env("KS", 8), kChunk = env("KC", 4096), kBlockBytes = env("AB", 768) << 10, kChunkBytes = env("BC", 8192) << 10, kNBlock = env("NB", 8);
  const int64_t step_bytes = kBlock * element_bytes;
  k_slice = kSlice;
  k_chunk = even_part(steps, kChunk / kPanel * 2 / element_bytes);
  keep_sums = k_chunk < steps;
  n_chunk = even_part(n_panels, std::max<int64_t>(1, kChunkBytes / (k_chunk * step_bytes)));
  m_block = even_part(m_panels, std::max<int64_t>(1, kBlockBytes / (k_chunk * step_bytes)));
  n_block = std::min<int64_t>(n_chunk, kNBlock);
}

}  // namespace trivet
