// What the pictures of pipelines and of studies share.
#pragma once

#include <fmt/format.h>
#include <iterator>
#include <string>
#include <string_view>

namespace trivet {

// For HTML and SVG, as text or within quotes; control characters become visible.
std::string escaped(std::string_view text);
// A round step so that at most `wanted` of them make `length`.
double round_step(double length, double wanted);

// The elements of a picture, one a line.
class SvgBody {
 public:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Args>(args)...);
    body_ += '\n';
  }

 protected:
  std::string body_;
};

}  // namespace trivet
