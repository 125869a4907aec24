#include "tests/support/where.h"

namespace trivet {

std::string source_path(const std::string& file) { return TRIVET_SOURCE_DIR "/" + file; }
std::string program_path() { return TRIVET_PROGRAM; }
std::string core_path() { return TRIVET_CORE_PROGRAM; }
std::string clock_path() { return TRIVET_STAND_IN_CLOCK; }
std::string nvml_path() { return TRIVET_STAND_IN_NVML; }

}  // namespace trivet
