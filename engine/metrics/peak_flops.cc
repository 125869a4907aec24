#include "engine/metrics/peak_flops.h"

#include <algorithm>
#include <string>
#include <vector>

namespace trivet {
namespace {

struct GpuPeak {
  std::string_view model;    // a word of the name
  std::string_view variant;  // another one, or "": any
  double bf16, tf32, fp32;   // 0: not built in, or not published
};

// The variant of a model comes before the model.
constexpr GpuPeak kPeaks[] = {
    {"GB200", "", 2500, 1250, 80},     {"B200", "", 2250, 1125, 75},      {"H200", "NVL", 835.5, 417.5, 60},
    {"H200", "", 989.4, 494.7, 66.9},  {"GH200", "", 989.4, 494.7, 66.9}, {"H100", "PCIe", 756, 378, 51.2},
    {"H100", "NVL", 835.5, 417.5, 60}, {"H100", "", 989.4, 494.7, 66.9},  {"H800", "PCIe", 756, 378, 51.2},
    {"H800", "", 989.4, 494.7, 66.9},  {"H20", "", 148, 74, 44},          {"A100", "", 312, 156, 19.5},
    {"A800", "", 312, 156, 19.5},      {"A30", "", 165, 82, 10.3},        {"A40", "", 149.7, 74.8, 37.4},
    {"A10", "", 125, 62.5, 31.2},      {"A6000", "", 154.8, 77.4, 38.7},  {"L40S", "", 362, 183, 91.6},
    {"L40", "", 181, 90.5, 90.5},      {"L4", "", 121, 60, 30.3},         {"V100", "SXM2", 0, 0, 15.7},
    {"V100", "PCIE", 0, 0, 14},        {"4090", "", 165.2, 82.6, 82.6},   {"3090", "", 71, 35.6, 35.6},
};

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == ' ' || c == '-' || c == '_') words.emplace_back();
    else words.back() += c;
  }
  return words;
}

}  // namespace

std::optional<double> peak_tflops_by_name(std::string_view gpu_name, std::string_view dtype) {
  const auto words = words_of(gpu_name);
  const auto has = [&](std::string_view word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  if (has("MIG") || has("Laptop") || has("Max") || has("Mobile") || has("D") || has("Ti")) return {};
  for (const GpuPeak& gpu : kPeaks) {
    if (!has(gpu.model) || !(gpu.variant.empty() || has(gpu.variant))) continue;
    const double peak = dtype == "bf16" ? gpu.bf16 : dtype == "tf32" ? gpu.tf32 : dtype == "fp32" ? gpu.fp32 : 0;
    return peak > 0 ? std::optional(peak) : std::nullopt;
  }
  return {};
}

}  // namespace trivet
