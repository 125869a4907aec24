// Paths of the checkout and the programs under test. Only where.cc contains them, so that the tests' object files are
// the same in every folder and compiler caches hit.
#pragma once

#include <string>

namespace trivet {

std::string source_path(const std::string& file);  // of a file in the checkout, e.g. "configs/tiny.yaml"
std::string program_path();                        // trivet
std::string core_path();                           // trivet-core
std::string clock_path();                          // tests/stand_in/clock.cc, as a library
std::string nvml_path();                           // tests/stand_in/nvml.cc, as a library

}  // namespace trivet
