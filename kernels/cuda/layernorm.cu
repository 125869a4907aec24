// Layer and RMS normalisation of rows. Both kernels read a row from memory once: a thread keeps up to four packs of it
// in registers, unconverted, for the passes that need the row's mean, variance and sums. Memory-bound: per element,
// the forward pass moves 2 elements, the backward pass 3 (4 with a residual). Rows may be heads; a head of 64 columns
// occupies only 8 threads, so a warp processes several.
#include "kernels/cuda/column_partials.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

namespace trivet {
namespace {

// ---- device helpers

// A thread's part of a row of h elements: packs thread, thread + stride, …. The first four stay in registers; the
// rest of a longer row is read again for each pass.
template <class T, class Whole>
struct RowPart {
  static constexpr int kHeld = 4;
  const T* row;
  int h;
  int first, stride;  // in packs
  RawPack<T> held[kHeld];

  __device__ RowPart(const T* row, int h, int first, int stride) : row(row), h(h), first(first), stride(stride) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = index(k);
      if (i < h) held[k] = load_raw(row, i, h, Whole());
    }
  }
  __device__ int index(int k) const { return (first + k * stride) * kPack; }

  // f(index of the pack's first element, pack)
  template <class F>
  __device__ void for_packs(const F& f) const {
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
      if (const int i = index(k); i < h) f(i, unpack(held[k]));
    for (int i = index(kHeld); i < h; i += stride * kPack) f(i, load_pack(row, i, h, Whole()));
  }
};

__device__ inline float4 plus(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

constexpr int kMostThreads = 512;  // per block, so that a thread may have 128 registers: one such block uses them all

// A row's offset from the first row. A row has h elements: it is a head or, in a layout without heads, the next h
// elements. REQUIRES: fewer than 2^31 rows.
__device__ inline int64_t row_begin(const HeadsLayout& z, int64_t row, int h) {
  if (z.d == 0) return row * h;
  // 64-bit divisions would take longer than all other work on a short row.
  const auto r = static_cast<unsigned int>(row), heads = static_cast<unsigned int>(z.heads()), token = r / heads,
             head = r % heads, b = static_cast<unsigned int>(z.b), members = static_cast<unsigned int>(z.members);
  return token / b * z.position + token % b * z.entry + head / members * z.group + head % members * z.member;
}

// kCentered, in all kernels: LayerNorm; otherwise RMSNorm, which has no mean, beta or dbeta.

// ---- kernels

// A block has blockDim.y teams of threads, one row per team; a thread handles every blockDim.x-th pack of its row.
template <class T, class Whole, bool kCentered>
__global__ void __launch_bounds__(kMostThreads)
    layernorm_forward_kernel(const T* x, HeadsLayout x_rows, const T* gamma, const T* beta, float eps, int64_t n, int h,
                             T* y, HeadsLayout y_rows, float* mean, float* rstd) {
  __shared__ float shared[32];
  const int64_t mine = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  // The teams of a warp reduce together. Teams past the end join in but read nothing, as y may be written over x.
  const int64_t row = mine < n ? mine : n - 1;
  const RowPart<T, Whole> part(x + row_begin(x_rows, row, h), mine < n ? h : 0, threadIdx.x, blockDim.x);
  T* const out = y + row_begin(y_rows, row, h);
  float mu = 0;
  if constexpr (kCentered) {
    float sum = 0;
    part.for_packs([&](int, const Pack& pack) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) sum += pack.v[k];  // past the row's end: zeros
    });
    mu = block_reduce(sum, Sum(), 0.0f, shared) / static_cast<float>(h);
  }
  float squares = 0;
  part.for_packs([&](int i, const Pack& pack) {
#pragma unroll
    for (int k = 0; k < kPack; ++k)
      if (i + k < h) squares += (pack.v[k] - mu) * (pack.v[k] - mu);
  });
  const float variance = block_reduce(squares, Sum(), 0.0f, shared) / static_cast<float>(h);
  const float r = 1.0f / sqrtf(variance + eps);
  if (mine >= n) return;
  part.for_packs([&](int i, Pack pack) {
    const Pack g = load_pack(gamma, i, h, Whole());
    Pack b{};
    if constexpr (kCentered) b = load_pack(beta, i, h, Whole());
#pragma unroll
    for (int k = 0; k < kPack; ++k) pack.v[k] = (pack.v[k] - mu) * r * g.v[k] + b.v[k];
    store_pack(out, i, h, Whole(), pack);
  });
  if (threadIdx.x == 0) {
    if constexpr (kCentered) mean[row] = mu;
    rstd[row] = r;
  }
}

// A block has blockDim.y teams of blockDim.x threads; each team takes every (gridDim.x * blockDim.y)-th row. A thread
// owns the same columns in all of its rows, and accumulates their part of dgamma and dbeta in shared memory,
// sums[team][kSums][padded], where no other thread touches them. At the end the block adds up its teams' sums and
// writes partials[block][kSums][h]. The halves of a pack are stored separately, as [2][packs] of float4, so that a
// warp's lanes access all banks.
template <class T, class Whole, bool kCentered>
__global__ void __launch_bounds__(kMostThreads)
    layernorm_backward_kernel(const T* dy, HeadsLayout y_rows, const T* x, HeadsLayout x_rows, const T* gamma,
                              const float* mean, const float* rstd, const T* residual, int64_t n, int h, int packs,
                              T* dx, float* partials) {
  constexpr int kSums = kCentered ? 2 : 1;
  float4* const sums = dynamic_shared<float4>();  // [teams][dgamma, dbeta][2][packs]
  __shared__ float shared[32];
  const int teams = blockDim.y, team = threadIdx.y;
  const int team_packs = kSums * 2 * packs;
  float4* const dgamma = sums + team * team_packs;
  float4* const dbeta = dgamma + 2 * packs;
  for (int i = threadIdx.x; i < team_packs; i += blockDim.x) dgamma[i] = float4{};
  __syncthreads();

  const auto team_sum = [&](float value) { return block_reduce(value, Sum(), 0.0f, shared); };
  // All threads leave the loop together, so that reductions are complete; teams past the end add nothing. (They must
  // not read another team's row, which dx may already have overwritten.)
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * teams; first < n;
       first += static_cast<int64_t>(gridDim.x) * teams) {
    const bool is_mine = first + team < n;
    const int64_t row = is_mine ? first + team : n - 1;
    const int64_t x_at = row_begin(x_rows, row, h), at = row_begin(y_rows, row, h);
    const int columns = is_mine ? h : 0;
    const RowPart<T, Whole> x_part(x + x_at, columns, threadIdx.x, blockDim.x);
    const RowPart<T, Whole> dy_part(dy + at, columns, threadIdx.x, blockDim.x);
    const float mu = kCentered ? mean[row] : 0.0f, r = rstd[row];
    // f(index, xhat, dy, gamma) for each of this thread's packs
    const auto for_packs = [&](const auto& f) {
      const auto one = [&](int i, const RawPack<T>& raw_x, const RawPack<T>& raw_dy) {
        Pack xhat = unpack(raw_x);
#pragma unroll
        for (int k = 0; k < kPack; ++k) xhat.v[k] = (xhat.v[k] - mu) * r;
        f(i, xhat, unpack(raw_dy), load_pack(gamma, i, h, Whole()));
      };
#pragma unroll
      for (int k = 0; k < RowPart<T, Whole>::kHeld; ++k)
        if (const int i = x_part.index(k); i < columns) one(i, x_part.held[k], dy_part.held[k]);
      for (int i = x_part.index(RowPart<T, Whole>::kHeld); i < columns; i += static_cast<int>(blockDim.x) * kPack)
        one(i, load_raw(x + x_at, i, h, Whole()), load_raw(dy + at, i, h, Whole()));
    };
    float g_sum = 0, gx_sum = 0;
    for_packs([&](int, const Pack& xhat, const Pack& d, const Pack& g) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {  // past the row's end gamma is 0
        if constexpr (kCentered) g_sum += d.v[k] * g.v[k];
        gx_sum += d.v[k] * g.v[k] * xhat.v[k];
      }
    });
    const float g_mean = kCentered ? team_sum(g_sum) / static_cast<float>(h) : 0.0f;
    const float gx_mean = team_sum(gx_sum) / static_cast<float>(h);
    if (!is_mine) continue;
    for_packs([&](int i, const Pack& xhat, const Pack& d, const Pack& g) {
      Pack gradient{};
      if (residual) gradient = load_pack(residual + at, i, h, Whole());
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        gradient.v[k] += r * (d.v[k] * g.v[k] - g_mean - xhat.v[k] * gx_mean);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // past the row's end d is 0
        const int to = half * packs + i / kPack, k = 4 * half;
        dgamma[to] = plus(dgamma[to], {d.v[k] * xhat.v[k], d.v[k + 1] * xhat.v[k + 1], d.v[k + 2] * xhat.v[k + 2],
                                       d.v[k + 3] * xhat.v[k + 3]});
        if constexpr (kCentered) dbeta[to] = plus(dbeta[to], {d.v[k], d.v[k + 1], d.v[k + 2], d.v[k + 3]});
      }
      store_pack(dx + at, i, h, Whole(), gradient);
    });
  }

  __syncthreads();
  const int threads = blockDim.x * blockDim.y, me = threadIdx.y * blockDim.x + threadIdx.x;
  for (int i = me; i < kSums * h; i += threads) {
    const int column = i < h ? i : i - h, which = i < h ? 0 : 2;
    const int at = ((which + column % kPack / 4) * packs + column / kPack) * 4 + column % 4;  // in a team's floats
    float total = 0;
    for (int other = 0; other < teams; ++other) total += reinterpret_cast<const float*>(sums + other * team_packs)[at];
    partials[static_cast<int64_t>(blockIdx.x) * kSums * h + i] = total;
  }
}

// ---- launchers

// Calls f.template operator()<T, Whole, kCentered>(). Whole: whether rows are read and written in whole packs.
template <class F>
void dispatch_kernel(DType dtype, bool vectors, bool centered, const F& f) {
  dispatch_device(dtype, [&]<class T>() {
    const auto with_rows = [&]<class Whole>() {
      if (centered) f.template operator()<T, Whole, true>();
      else f.template operator()<T, Whole, false>();
    };
    if (vectors) with_rows.template operator()<std::true_type>();
    else with_rows.template operator()<std::false_type>();
  });
}

void check_rows(const char* op, int64_t n, int64_t h) {
  if (h > 1 << 24) fail(std::string(op) + ": rows of " + std::to_string(h) + " elements, expected at most 16777216");
  if (n > INT32_MAX) fail(std::string(op) + ": " + std::to_string(n) + " rows, expected at most 2147483647");
}

bool is_short(int64_t h) { return h <= 1024; }

// The block size for rows of h elements. Short rows: eight warps, split into teams of one thread per pack of a row, at
// most a warp. Other rows: one team of whole warps with `packs` packs per thread.
dim3 row_teams(int64_t h, int64_t packs) {
  unsigned int threads = 1;
  if (!is_short(h))
    return static_cast<unsigned int>(std::min<int64_t>(ceil_div(h, packs * 32 * kPack) * 32, kMostThreads));
  while (threads < 32 && threads * kPack < h) threads *= 2;
  return {threads, kBlockThreads / threads};
}

// True if each row begins and ends at a multiple of kPack.
bool whole_packs(const HeadRows& rows, int64_t h) {
  const HeadsLayout& z = rows.layout;  // without heads: zeros
  return (h | rows.first | z.position | z.entry | z.group | z.member) % kPack == 0;
}

}  // namespace

void CudaOps::launch(const op::LayernormForward& op, cudaStream_t stream) {
  const HeadRows &x = op.rows.x, &y = op.rows.y;
  const int64_t n = op.rows.count(op.x), h = op.rows.width(op.x);
  if (n * h == 0) return;
  check_rows(op.kSpan.name, n, h);
  const dim3 teams = row_teams(h, 3);
  const bool vectors = whole_packs(x, h) && whole_packs(y, h) && aligned(op.x, op.gamma, op.beta, op.y);
  dispatch_kernel(op.x.dtype, vectors, bool{op.mean}, [&]<class T, class Whole, bool kCentered>() {
    launch_kernel(layernorm_forward_kernel<T, Whole, kCentered>,
                  {blocks(ceil_div(n, teams.y), op.kSpan.name), teams, stream}, elements<T>(op.x) + x.first, x.layout,
                  elements<T>(op.gamma), elements<T>(op.beta), op.eps, n, static_cast<int>(h),
                  elements<T>(op.y) + y.first, y.layout, op.mean.as<float>(), op.rstd.as<float>());
  });
}

void CudaOps::launch(const op::LayernormBackward& op, cudaStream_t stream) {
  const HeadRows &x = op.rows.x, &y = op.rows.y;
  const int64_t n = op.rows.count(op.x), h = op.rows.width(op.x), packs = ceil_div(h, kPack);
  if (n * h == 0) return;
  check_rows(op.kSpan.name, n, h);
  // A block's teams share one row of partials; a thread handles four packs of a long row, if the block size permits.
  const dim3 block = is_short(h) ? row_teams(h, 1) : dim3(h <= 4096 ? 128 : h <= 8192 ? 256 : kMostThreads);
  const int64_t sums = op.mean ? 2 : 1;  // dgamma, dbeta
  const auto shared = static_cast<size_t>(block.y * sums * 2 * packs) * sizeof(float4);
  constexpr size_t kMostShared = 224 * 1024;
  if (shared > kMostShared) fail("layernorm_backward: rows of " + std::to_string(h) + " elements are too long");
  const int64_t per_multiprocessor = kMostThreads / (block.x * block.y);  // all resident, in 16 warps
  const int64_t parts = std::min(ceil_div(n, block.y), per_multiprocessor * multiprocessors_);
  auto* const partials = reinterpret_cast<float*>(workspaces_.take(stream, parts * sums * h * 4));
  const bool vectors = whole_packs(x, h) && whole_packs(y, h) && aligned(op.x, op.dy, op.gamma, op.residual, op.dx);
  dispatch_kernel(op.x.dtype, vectors, bool{op.mean}, [&]<class T, class Whole, bool kCentered>() {
    allow_shared(layernorm_backward_kernel<T, Whole, kCentered>, shared);
    launch_kernel(layernorm_backward_kernel<T, Whole, kCentered>, {blocks(parts, op.kSpan.name), block, stream, shared},
                  elements<T>(op.dy) + y.first, y.layout, elements<T>(op.x) + x.first, x.layout, elements<T>(op.gamma),
                  op.mean.as<float>(), op.rstd.as<float>(), op.residual ? elements<T>(op.residual) + y.first : nullptr,
                  n, static_cast<int>(h), static_cast<int>(packs), elements<T>(op.dx) + y.first, partials);
  });
  add_column_partials(partials, parts, h, op.dgamma.as<float>(), op.dbeta.as<float>(), stream);
}

}  // namespace trivet
