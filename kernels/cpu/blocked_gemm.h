// GEMM of large matrices, blocked so that the innermost loops find their operands in the caches, after Goto and van de
// Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).
//
// All threads pack a chunk of b into right panels, which stay in the last-level cache. Each thread packs blocks of its
// rows of a into left panels, which stay in its L2 cache together with the sums that they add to, while the right
// panels stream past. An element's products are added in the order of k whatever the blocking (panels.h), so results
// have the same bits with any number of threads and any cache sizes.
#pragma once

#include <cstddef>

#include "kernels/cpu/panels.h"
#include "kernels/cpu/parallel_for.h"

namespace trivet::TRIVET_CPU {

// c[m, n] = or += a[m, k] b[k, n] + bias: op::Matmul on plain pointers.
template <class T, class C>
struct Gemm {
  int64_t m, n, k;
  const T* a;  // [m, k], or [k, m] if transpose_a
  const T* b;  // [k, n], or [n, k] if transpose_b
  C* c;
  const T* bias;  // [n], or null
  bool transpose_a, transpose_b, accumulate;
};

// The blocking of a GEMM; all but bytes are counts of panels or of steps.
struct Blocking {
  int64_t m_panels, n_panels, steps;
  int64_t k_chunk, n_chunk;       // of b, packed at a time
  int64_t k_block, m_block;       // of a, packed at a time by a thread
  int64_t k_slice, n_block;       // of a slice of a's block, and panels of b that it multiplies before the next slice
  bool keep_sums;                 // sums are kept from one chunk of k to the next: those of m_chunk by n_chunk panels
  int64_t m_chunk;                // all rows, unless the sums would be too many
  int64_t sum_rows, sum_columns;  // of sums kept at a time: by all threads together if keep_sums, else by each

  // slice_steps: the most steps of a slice (Panels::kSliceSteps).
  Blocking(int64_t m, int64_t n, int64_t k, int64_t element_bytes, int64_t slice_steps);
  int64_t sums(int threads) const { return sum_rows * sum_columns * (keep_sums ? 1 : threads); }
  int64_t workspace_bytes(int threads, int64_t element_bytes) const {
    return kBlock * (element_bytes * (k_chunk * n_chunk + threads * k_block * m_block) + 4 * sums(threads));
  }
};

template <class Panels, class T, class C>
class BlockedGemm {
 public:
  BlockedGemm(const Gemm<T, C>& gemm, int threads)
      : p_(gemm), blocking_(gemm.m, gemm.n, gemm.k, sizeof(Element), Panels::kSliceSteps), threads_(threads) {}

  int64_t workspace_bytes() const { return blocking_.workspace_bytes(threads_, sizeof(Element)); }

  void run(std::byte* workspace) {
    b_ = reinterpret_cast<Element*>(workspace);
    a_ = b_ + kBlock * blocking_.k_chunk * blocking_.n_chunk;
    sums_ = reinterpret_cast<float*>(a_ + kBlock * blocking_.k_block * threads_ * blocking_.m_block);
    if (p_.k == 0) return finish_empty_sums();
    for (int64_t i = 0; i < blocking_.m_panels; i += blocking_.m_chunk)
      for (int64_t j = 0; j < blocking_.n_panels; j += blocking_.n_chunk)
        for (int64_t s = 0; s < blocking_.steps; s += blocking_.k_chunk)
          multiply_chunk({j, std::min(blocking_.n_chunk, blocking_.n_panels - j), s,
                          std::min(blocking_.k_chunk, blocking_.steps - s)},
                         {i, std::min(i + blocking_.m_chunk, blocking_.m_panels)});
  }

 private:
  using Element = typename Panels::Element;
  struct Chunk {
    int64_t panel0, panels, step0, steps;
  };

  // Packs a chunk of b, and adds its part of the sums of these rows of panels.
  void multiply_chunk(const Chunk& chunk, Range rows) const {
    parallel_for(threads_, chunk.panels, 1, [&](Range panels, int) { pack_b(chunk, panels); });
    if (rows.size() >= chunk.panels || rows.size() >= 8 * threads_)
      parallel_for(threads_, rows.size(), 1, [&](Range share, int part) {
        multiply(chunk, {rows.begin + share.begin, rows.begin + share.end}, {0, chunk.panels}, part);
      });
    else
      parallel_for(threads_, chunk.panels, 1, [&](Range columns, int part) { multiply(chunk, rows, columns, part); });
  }

  // Packs panels of a matrix over some steps. Panels that lie side by side in memory are packed together, step by step:
  // each row of the matrix, which may be far from the next, thus yields more than one cache line at a time.
  template <Side side>
  void pack(const T* from, bool rows_first, int64_t rows, Range panels, Range steps, Element* to) const {
    const auto pack_steps = [&](int64_t panel, int64_t step, int64_t count) {
      const int64_t row0 = panel * kPanel, at = step * kPanel, length = std::min(p_.k - at, count * kPanel);
      Element* const here = to + ((panel - panels.begin) * steps.size() + step - steps.begin) * kBlock;
      if (rows_first) Panels::template pack_rows<side>(from + row0 * p_.k + at, p_.k, rows - row0, length, here);
      else Panels::template pack_columns<side>(from + at * rows + row0, rows, rows - row0, length, here);
    };
    const int64_t count = rows_first ? steps.size() : 1;
    for (int64_t step = steps.begin; step < steps.end; step += count) {
      if (!rows_first && step + 1 < steps.end)  // rows are too short for the hardware prefetcher
        prefetch<0>(from + (step + 1) * kPanel * rows + panels.begin * kPanel, rows,
                    std::min(kPanel, p_.k - (step + 1) * kPanel), panels.size() * kPanel);
      for (int64_t panel = panels.begin; panel < panels.end; ++panel) pack_steps(panel, step, count);
    }
  }

  // Prefetches `rows` rows of a matrix, to be read, or written if `write`.
  template <int write, class X>
  static void prefetch(const X* from, int64_t ld, int64_t rows, int64_t columns) {
    constexpr int64_t kLine = 64 / sizeof(X);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t x = 0; x < columns; x += kLine) __builtin_prefetch(from + r * ld + x, write);
  }

  void pack_b(const Chunk& chunk, Range panels) const {
    pack<Side::right>(p_.b, p_.transpose_b, p_.n, {chunk.panel0 + panels.begin, chunk.panel0 + panels.end},
                      {chunk.step0, chunk.step0 + chunk.steps}, b_ + panels.begin * chunk.steps * kBlock);
  }

  // Adds the chunk's part of the sums of these rows and columns (panels; columns count from the chunk's first).
  void multiply(const Chunk& chunk, Range rows, Range columns, int part) const {
    [[maybe_unused]] const typename Panels::Session session;
    Element* const a = a_ + kBlock * blocking_.k_block * blocking_.m_block * part;
    const int64_t end = chunk.step0 + chunk.steps;
    for (int64_t i0 = rows.begin; i0 < rows.end; i0 += blocking_.m_block)
      for (int64_t s0 = chunk.step0; s0 < end; s0 += blocking_.k_block) {
        const Range block{i0, std::min(i0 + blocking_.m_block, rows.end)},
            steps{s0, std::min(s0 + blocking_.k_block, end)};
        pack<Side::left>(p_.a, !p_.transpose_a, p_.m, block, steps, a);
        for (int64_t j0 = columns.begin; j0 < columns.end; j0 += blocking_.n_block)
          multiply_block(chunk, a, steps, block, {j0, std::min(j0 + blocking_.n_block, columns.end)}, part);
      }
  }

  void multiply_block(const Chunk& chunk, const Element* a, Range steps, Range rows, Range columns, int part) const {
    for (int64_t slice = steps.begin; slice < steps.end; slice += blocking_.k_slice) {
      const int64_t count = std::min(blocking_.k_slice, steps.end - slice);
      const bool first = slice == 0, last = slice + count == blocking_.steps;
      for (int64_t j = columns.begin; j < columns.end; ++j)
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          const Element* const left = a + ((i - rows.begin) * steps.size() + slice - steps.begin) * kBlock;
          const Element* const right = b_ + (j * chunk.steps + slice - chunk.step0) * kBlock;
          float* const sum = sums_at(i, j, part);
          if (last) prefetch_c(i, chunk.panel0 + j);
          if (first) Panels::template multiply<false>(left, right, count, sum, p_.m - i * kPanel);
          else Panels::template multiply<true>(left, right, count, sum, p_.m - i * kPanel);
          if (last) finish(sum, i, chunk.panel0 + j);
        }
    }
  }

  // Among the row and column panels that a thread works on at a time, no two pairs share sums.
  float* sums_at(int64_t i, int64_t j, int part) const {
    const int64_t row = i % blocking_.sum_rows + (blocking_.keep_sums ? 0 : part * blocking_.sum_rows);
    return sums_ + kBlock * (row * blocking_.sum_columns + j % blocking_.sum_columns);
  }

  // Prefetches the block of c that finish() reads and writes, while the processor multiplies.
  void prefetch_c(int64_t i, int64_t j) const {
    prefetch<1>(p_.c + i * kPanel * p_.n + j * kPanel, p_.n, std::min(kPanel, p_.m - i * kPanel), kPanel);
  }

  void finish_empty_sums() const {
    const float zero[kBlock]{};
    for (int64_t i = 0; i < blocking_.m_panels; ++i)
      for (int64_t j = 0; j < blocking_.n_panels; ++j) finish(zero, i, j);
  }

  // Writes a complete block of sums to c.
  void finish(const float* sum, int64_t i, int64_t j) const {
    const int64_t rows = std::min(kPanel, p_.m - i * kPanel), columns = std::min(kPanel, p_.n - j * kPanel);
    C* c = p_.c + i * kPanel * p_.n + j * kPanel;
    const T* const bias = p_.bias ? p_.bias + j * kPanel : nullptr;
    if (columns == kPanel) {
      for (int64_t r = 0; r < rows; ++r, c += p_.n, sum += kPanel)
        for (int64_t x = 0; x < kPanel; x += kLanes) {
          Floats total = load(sum + x);
          if (bias) total += load(bias + x);
          if (p_.accumulate) total += load(c + x);
          store(c + x, total);
        }
    } else {  // the same for a partial block; sharing a loop of unknown length would make full blocks much slower
      for (int64_t r = 0; r < rows; ++r, c += p_.n, sum += kPanel)
        for_vectors(columns, [&](auto at) {
          Floats total = at.load(sum);
          if (bias) total += at.load(bias);
          if (p_.accumulate) total += at.load(c);
          at.store(c, total);
        });
    }
  }

  const Gemm<T, C> p_;
  const Blocking blocking_;
  const int threads_;
  Element *b_ = nullptr, *a_ = nullptr;
  float* sums_ = nullptr;
};

}  // namespace trivet::TRIVET_CPU
