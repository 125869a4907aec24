// Which GEMMs of a linear layer run in FP8, and how their operands are scaled (defined in quantise.h).
#pragma once

namespace trivet {

enum class Fp8 { none, hybrid, e4m3 };  // hybrid: weights and activations in E4M3, gradients in E5M2
enum class Fp8Recipe { tensorwise, blockwise, delayed, mxfp8 };
struct Fp8Mode {
  Fp8 format = Fp8::none;
  bool weight_grads = true;  // run in FP8 too; false: these GEMMs take unquantised operands
  Fp8Recipe recipe = Fp8Recipe::tensorwise;
  bool operator==(const Fp8Mode&) const = default;
};

}  // namespace trivet
