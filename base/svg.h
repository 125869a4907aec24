// What the pictures of pipelines, of studies and of runs share.
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

// A picture in light and dark, as the reader's system is set; the classes of its elements are those of the palette in
// svg.cc. Texts are escaped.
class Canvas : public SvgBody {
 public:
  void text(double x, double y, const char* classes, std::string_view text);
  void line(double x1, double y1, double x2, double y2, const char* classes);
  void bar(double x, double y, double width, double height, const char* classes, std::string_view title);
  // The whole picture. label: what it shows, for those who do not see it.
  std::string finish(double width, double height, std::string_view label) const;
};

}  // namespace trivet
