// Where the checkout and the program under test are. Only where.cc has the paths, so that the tests' own object files
// are the same in every folder, to a compiler cache too.
#pragma once

#include <string>

namespace trivet {

std::string source_path(const std::string& file);  // of a file of the checkout, e.g. "configs/tiny.yaml"
std::string program_path();                        // trivet
std::string core_path();                           // trivet-core
std::string clock_path();                          // tests/stand_in/clock.cc, as a library
std::string nvml_path();                           // tests/stand_in/nvml.cc, likewise

}  // namespace trivet
