#include "base/provenance.h"

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <set>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/content_hash.h"
#include "base/host.h"

namespace trivet {
namespace {

std::string processor_name() {
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  return "unknown processor";
}

// True for environment variables that can affect the speed of ranks.
bool matters(std::string_view variable) {
  constexpr std::string_view kPrefixes[] = {
      "NCCL_", "OMP_", "GOMP_", "KMP_", "OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_",      "MPIR_CVAR_", "I_MPI_",
      "UCX_",  "FI_",  "CUDA_", "DNNL", "ONEDNN_",   "MALLOC_",   "GLIBC_TUNABLES", "LD_",        "TRIVET_"};
  return std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return variable.starts_with(prefix); });
}

}  // namespace

std::string provenance_value(const Provenance& provenance, std::string_view name) {
  const auto found = provenance.find(std::string(name));
  return found == provenance.end() ? "" : found->second;
}

Provenance provenance_of(Provenance build, const std::string& path) {
  utsname kernel = {};
  ::uname(&kernel);
  std::set<std::string> settings;
  for (char** variable = environ; variable && *variable; ++variable)
    if (matters(*variable)) settings.insert(*variable);
  build["binary"] = content_hash(InputFile(path)).substr(0, 16);
  build["host"] = host_name();
  build["processor"] = processor_name();
  build["cores"] = std::to_string(usable_cores());
  build["kernel"] = fmt::format("{} {}", kernel.sysname, kernel.release);
  std::string& environment = build["environment"];
  for (const std::string& setting : settings) environment += (environment.empty() ? "" : " ") + setting;
  return build;
}

std::string provenance_text(const Provenance& provenance) {
  const auto of = [&](std::string_view name) { return provenance_value(provenance, name); };
  if (of("binary").empty()) return of("processor");
  return fmt::format("{}, {} cores ({}, {}); trivet {}, commit {} ({}), binary {}{}{}", of("processor"), of("cores"),
                     of("host"), of("kernel"), of("version"), of("commit"), of("build"), of("binary"),
                     of("environment").empty() ? "" : "; ", of("environment"));
}

}  // namespace trivet
