// Shared by the pictures and pages of pipelines, studies and runs. They are self-contained (no script, no network),
// follow the reader's light or dark mode, and escape all text.
#pragma once

#include <fmt/format.h>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"

namespace trivet {

// Escapes text for HTML and SVG, as content or within quotes; control characters become visible.
std::string escaped(std::string_view text);
// A round step size, so that at most `wanted` steps fit in `length`.
double round_step(double length, double wanted);

// The elements of a picture, one per line.
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

// A picture in light or dark mode, following the reader's system; the classes of its elements are those of the palette
// in svg.cc. Text is escaped.
class Canvas : public SvgBody {
 public:
  void text(double x, double y, const char* classes, std::string_view text);
  void line(double x1, double y1, double x2, double y2, const char* classes);
  void bar(double x, double y, double width, double height, const char* classes, std::string_view title);
  void dot(double x, double y, std::string_view series, std::string_view title = "");
  // The whole picture. label: a description for screen readers.
  std::string finish(double width, double height, std::string_view label) const;
};

// A panel of curves over steps or a similar axis.
struct Chart {
  Canvas& canvas;
  double left, top, width, height;
  double first, last, low, high;  // the ranges of x and y
  bool logarithmic = false;       // needs low > 1e-300

  // Draws title, grid and tick labels. Widens an empty range of values.
  void draw_axes(std::string_view title, bool numbers_along = true);
  double x_of(double along) const;
  double y_of(double value) const;
  // Draws a curve through the points (along, value), with gaps at values that are not finite.
  void draw_curve(const std::vector<std::pair<double, double>>& points, std::string_view classes) const;
};

// A part of a page: a picture, a table, or both.
struct PageSection {
  std::string heading, picture = {}, caption = {};
  TextBlock table = {};  // its first row names the columns; paths under "files" become links
  std::string note = {};
};
std::string html_section(const PageSection& section);
// Preformatted text that the reader can unfold.
std::string html_details(std::string_view summary, std::string_view text);
std::string html_page(std::string_view title, std::string_view body);  // body: HTML

}  // namespace trivet
