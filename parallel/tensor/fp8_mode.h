// The GEMMs of a linear layer that are in FP8, and the scaling of their operands, which quantise.h defines.
#pragma once

namespace trivet {

enum class Fp8 { none, hybrid, e4m3 };  // hybrid: weights and activations in E4M3, gradients in E5M2
enum class Fp8Recipe { tensorwise, blockwise, delayed, mxfp8 };
struct Fp8Mode {
  Fp8 format = Fp8::none;
  bool weight_grads = true;  // too; else these GEMMs take operands that are not quantised
  Fp8Recipe recipe = Fp8Recipe::tensorwise;
  bool operator==(const Fp8Mode&) const = default;
};

}  // namespace trivet
