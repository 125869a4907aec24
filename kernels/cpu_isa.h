// CpuIsa: the instruction sets that kernels/cpu is compiled for, all in one program. Each includes the ones before it.
// The ISA to use is chosen at run time. Results differ by rounding between ISAs.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trivet {

enum class CpuIsa : uint8_t {
  portable,     // the architecture's baseline: SSE2 on x86-64, NEON on AArch64
  avx2,         // AVX2, FMA
  avx512,       // AVX-512 F, BW, DQ, VL
  avx512_bf16,  // AVX-512-BF16
  amx           // AMX-TILE, AMX-BF16
};
constexpr std::array<std::string_view, 5> kCpuIsaNames = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
constexpr std::string_view name_of(CpuIsa isa) { return kCpuIsaNames[static_cast<size_t>(isa)]; }

// The ISAs that this build has and this machine can run, slowest first; portable is always included.
std::span<const CpuIsa> usable_cpu_isas();
inline CpuIsa best_cpu_isa() { return usable_cpu_isas().back(); }

// Why this process cannot use the ISA; empty if it can.
std::string cpu_isa_problem(CpuIsa isa);

}  // namespace trivet
