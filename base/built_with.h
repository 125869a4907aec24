// What is compiled in.
#pragma once

namespace trivet {

bool built_with_cuda();

}  // namespace trivet
