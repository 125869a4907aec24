// Peak arithmetic of GPUs by the name the driver reports, from NVIDIA's data sheets: dense (never the sparse number,
// twice as high), with fp32 accumulation. It is the denominator of MFU, so an unknown GPU has none rather than a guess.
#pragma once

#include <optional>
#include <string_view>

namespace trivet {

// TFLOP/s of one GPU. `dtype`: bf16, tf32 (tensor cores) or fp32 (none). Empty for an unknown name or dtype, for a
// slice of a GPU (MIG) and for the slower laptop variants.
std::optional<double> peak_tflops_by_name(std::string_view gpu_name, std::string_view dtype);

}  // namespace trivet
