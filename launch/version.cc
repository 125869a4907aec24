// The program's version, for `trivet --version` and the rows of a study. In its own file because it contains the
// commit, so every commit recompiles it.
#include <fmt/format.h>

#include "commit.h"  // written by the build
#include "kernels/base/device.h"
#include "kernels/cpu_isa.h"
#include "launch/version.h"

namespace trivet {
namespace {

#ifdef __clang__
constexpr auto kCompiler = "clang " __clang_version__;
#else
constexpr auto kCompiler = "g++ " __VERSION__;
#endif

}  // namespace

std::string version_text() {
  return fmt::format("trivet {}, commit {}\ncompiled by {}, {}\nCPU: {}, kernels for {}\nback ends: {}", TRIVET_VERSION,
                     kCommit, kCompiler, TRIVET_BUILD, create_cpu_device()->name(), name_of(best_cpu_isa()),
                     TRIVET_BACK_ENDS);
}

Provenance this_build() {
  return {{"version", TRIVET_VERSION},
          {"commit", kCommit},
          {"build", fmt::format("{}, {}, {}, {}", kCompiler, TRIVET_BUILD, TRIVET_FLAGS, TRIVET_BACK_ENDS)}};
}

}  // namespace trivet
