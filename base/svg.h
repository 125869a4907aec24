// What the pictures of pipelines and of studies share.
#pragma once

#include <string>
#include <string_view>

namespace trivet {

// For HTML and SVG, as text or within quotes; control characters become visible.
std::string escaped(std::string_view text);
// A round step so that at most `wanted` of them make `length`.
double round_step(double length, double wanted);

}  // namespace trivet
