// The instruction sets that this machine supports and this build contains. CMakeLists.txt lists the latter in
// TRIVET_CPU_ISAS, as "ISA(portable)ISA(avx2)".
#include "kernels/cpu_isa.h"

#include <algorithm>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/base/device.h"
#include "kernels/cpu_kernels.h"

namespace trivet {

#define ISA(name)                                            \
  namespace cpu_##name {                                     \
    std::unique_ptr<CpuKernels> create_kernels(int threads); \
  }
TRIVET_CPU_ISAS
#undef ISA

namespace {

struct Built {
  CpuIsa isa;
  std::unique_ptr<CpuKernels> (*create)(int threads);
};
#define ISA(name) {CpuIsa::name, cpu_##name::create_kernels},
constexpr Built kBuilt[] = {TRIVET_CPU_ISAS};
#undef ISA

const Built* find_built(CpuIsa isa) {
  const auto found = std::ranges::find(kBuilt, isa, &Built::isa);
  return found == std::end(kBuilt) ? nullptr : found;
}

#if defined(__x86_64__)
// True if the CPU supports AMX and Linux grants this process permission to use it, which must be requested.
bool has_amx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;      // bits in leaf 7's edx
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kBf16) && (edx & kTile) &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Checks only the instructions that this ISA adds to those before it. The built-in also checks for OS support.
bool has_own_instructions(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::portable: return true;
    case CpuIsa::avx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case CpuIsa::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case CpuIsa::avx512_bf16: return __builtin_cpu_supports("avx512bf16");
    case CpuIsa::amx: return has_amx();
  }
  return false;
}
#else
bool has_own_instructions(CpuIsa isa) { return isa == CpuIsa::portable; }
#endif

// The last ISA that the machine supports along with every ISA before it.
CpuIsa last_of_machine() {
  static const CpuIsa last = [] {
    CpuIsa isa = CpuIsa::portable;
    for (size_t next = 1; next < kCpuIsaNames.size() && has_own_instructions(static_cast<CpuIsa>(next)); ++next)
      isa = static_cast<CpuIsa>(next);
    return isa;
  }();
  return last;
}

}  // namespace

std::span<const CpuIsa> usable_cpu_isas() {
  static const std::vector<CpuIsa> usable = [] {
    std::vector<CpuIsa> isas;
    for (const Built& built : kBuilt)
      if (built.isa <= last_of_machine()) isas.push_back(built.isa);
    return isas;
  }();
  return usable;
}

std::string cpu_isa_problem(CpuIsa isa) {
  if (std::ranges::count(usable_cpu_isas(), isa) > 0) return "";
  if (!find_built(isa)) return "this build has no code for it";
  std::string usable;
  for (const CpuIsa each : usable_cpu_isas()) usable += (usable.empty() ? "" : ", ") + std::string(name_of(each));
  return "this machine (" + create_cpu_device()->name() +
         ") lacks the instructions, or its operating system does not let programs use them; usable here: " + usable;
}

std::unique_ptr<CpuKernels> create_cpu_kernels(CpuIsa isa, int threads) { return find_built(isa)->create(threads); }

}  // namespace trivet
