#include "engine/model/init.h"

#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/parallel_for.h"
#include "kernels/philox.h"

namespace trivet {
namespace {

// Four normals from one Philox block: two Box-Muller pairs.
std::array<float, 4> normals(uint64_t key, int64_t block) {
  const PhiloxWords words = philox4x32(static_cast<uint64_t>(block), 0, key);
  std::array<float, 4> out;
  for (int pair = 0; pair < 2; ++pair) {
    const double u = (words.w[2 * pair] + 0.5) * 0x1p-32;  // in (0, 1): the logarithm is finite
    const double angle = 2 * std::numbers::pi * ((words.w[2 * pair + 1] + 0.5) * 0x1p-32);
    const double radius = std::sqrt(-2 * std::log(u));
    out[static_cast<size_t>(2 * pair)] = static_cast<float>(radius * std::cos(angle));
    out[static_cast<size_t>(2 * pair + 1)] = static_cast<float>(radius * std::sin(angle));
  }
  return out;
}

// Fills the rows [first_row, end_row) of this rank's shard. Padding stays zero.
void fill_normal(const Param& param, uint64_t seed, int64_t first_row, int64_t end_row, float* values) {
  const Shape global = as_matrix(param.spec.global_shape);
  const uint64_t key = initial_key(seed, param.spec.name);
  const int64_t row_offset = param.first_row(), col_offset = param.first_column();
  const int64_t cols = as_matrix(param.shape)[-1],
                end_global_row = param.spec.padding_from >= 0 ? param.spec.padding_from : global[0];
  for (int64_t r = first_row; r < end_row && row_offset + r < end_global_row; ++r) {
    const int64_t begin = (row_offset + r) * global[-1] + col_offset;
    for (int64_t i = 0; i < cols;) {
      const int64_t index = begin + i;
      const std::array<float, 4> four = normals(key, index / 4);
      for (int64_t lane = index % 4; lane < 4 && i < cols; ++lane, ++i)
        values[r * cols + i] = param.spec.init.std * four[static_cast<size_t>(lane)];
    }
  }
}

}  // namespace

float initial_normal(uint64_t key, int64_t i) { return normals(key, i / 4)[static_cast<size_t>(i % 4)]; }

uint64_t initial_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull ^ (seed * 0x9E3779B97F4A7C15ull);  // FNV-1a, started from the seed
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

void initialize_weight(const Param& param, uint64_t seed, int threads, Device& device, Stream& stream) {
  const Shape shape = as_matrix(param.shape);
  const Init::Kind kind = param.spec.init.kind;
  std::vector<float> values(static_cast<size_t>(shape.numel()), kind == Init::ones ? 1.0f : 0.0f);
  if (kind == Init::normal) {
    const int64_t rows = shape.numel() / shape[-1], parts = threads;
    parallel_for(static_cast<size_t>(threads), static_cast<size_t>(threads), [&](size_t i) {
      const auto part = static_cast<int64_t>(i);
      fill_normal(param, seed, rows * part / parts, rows * (part + 1) / parts, values.data());
    });
  }
  std::vector<bf16> rounded;
  if (param.weight.dtype == DType::bf16) rounded = std::vector<bf16>(values.begin(), values.end());
  device.copy_to_device(rounded.empty() ? static_cast<const void*>(values.data()) : rounded.data(), param.weight,
                        stream);
  stream.synchronize();
}

}  // namespace trivet
