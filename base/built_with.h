// The optional features of this build.
#pragma once

namespace trivet {

bool built_with_cuda();

}  // namespace trivet
