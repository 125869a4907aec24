// The program's version. In its own file because every commit recompiles it.
#pragma once

#include <string>

#include "base/provenance.h"

namespace trivet {

std::string version_text();  // printed by --version; several lines
Provenance this_build();     // version, commit and build

}  // namespace trivet
