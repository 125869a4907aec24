#include "engine/model/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <thread>
#include <vector>

#include "kernels/philox.h"

namespace trivet {
namespace {

// Four normals from one Philox block: two pairs of Box and Muller.
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

// Row r of this rank's part is `count` consecutive elements of the global tensor from the returned index on.
struct Rows {
  int64_t rows, count;
  int64_t stride, offset;  // global index of row r's first element = r * stride + offset
};
Rows global_rows(const Param& param) {
  const Shape& global = param.spec.global_shape;
  if (global.rank == 1) return {1, param.shape[0], 0, param.partition_offset};
  if (global.rank != 2) fail(param.spec.name + ": parameters are vectors or matrices");
  const bool columns_cut = param.partition_dim == 1;
  return {param.shape[0], param.shape[1], global[1],
          columns_cut ? param.partition_offset : param.partition_offset * global[1]};
}

void fill_normal(const Param& param, uint64_t seed, int64_t first_row, int64_t end_row, float* values) {
  const uint64_t key = initial_key(seed, param.spec.name);
  const Rows rows = global_rows(param);
  const int64_t first_global_row = param.partition_dim == 0 ? param.partition_offset : 0;
  for (int64_t r = first_row; r < end_row; ++r) {
    float* row = values + r * rows.count;
    if (param.spec.padding_from >= 0 && first_global_row + r >= param.spec.padding_from) {
      std::fill(row, row + rows.count, 0.0f);
      continue;
    }
    const int64_t begin = r * rows.stride + rows.offset;
    for (int64_t i = 0; i < rows.count;) {
      const int64_t index = begin + i;
      const std::array<float, 4> four = normals(key, index / 4);
      for (int64_t lane = index % 4; lane < 4 && i < rows.count; ++lane, ++i)
        row[i] = param.spec.init.std * four[static_cast<size_t>(lane)];
    }
  }
}

std::vector<float> initial_values(const Param& param, uint64_t seed, int threads) {
  std::vector<float> values(static_cast<size_t>(param.shape.numel()));
  switch (param.spec.init.kind) {
    case Init::zeros: break;
    case Init::ones: std::fill(values.begin(), values.end(), 1.0f); break;
    case Init::normal: {
      const int64_t rows = global_rows(param).rows;
      std::vector<std::jthread> workers;
      for (int64_t w = 0; w < threads; ++w)
        workers.emplace_back(
            [&, w] { fill_normal(param, seed, rows * w / threads, rows * (w + 1) / threads, values.data()); });
    }
  }
  return values;
}

}  // namespace

float initial_normal(uint64_t key, int64_t i) { return normals(key, i / 4)[static_cast<size_t>(i % 4)]; }

uint64_t initial_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull ^ (seed * 0x9E3779B97F4A7C15ull);  // FNV-1a, started from the seed
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

void initialize_weight(const Param& param, uint64_t seed, int threads, Device& device, Stream& stream) {
  const std::vector<float> values = initial_values(param, seed, threads);
  if (param.weight.dtype == DType::f32) {
    device.copy_to_device(values.data(), param.weight, stream);
    stream.synchronize();
  } else {
    std::vector<bf16> rounded;
    rounded.reserve(values.size());
    for (const float value : values) rounded.emplace_back(value);
    device.copy_to_device(rounded.data(), param.weight, stream);
    stream.synchronize();
  }
}

}  // namespace trivet
