// The program's version. Apart from the other commands, as each commit compiles it again.
#pragma once

#include <string>

#include "base/provenance.h"

namespace trivet {

std::string version_text();  // of --version, several lines
Provenance this_build();     // version, commit and build

}  // namespace trivet
