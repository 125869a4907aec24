#include "base/svg.h"

#include <cmath>

namespace trivet {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      case '\n':
      case '\t': out += c; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) out += "\xef\xbf\xbd";  // U+FFFD
        else out += c;
    }
  }
  return out;
}

double round_step(double length, double wanted) {
  const double raw = length / wanted, power = std::pow(10, std::floor(std::log10(raw)));
  const double digit = raw / power;
  return power * (digit > 5 ? 10 : digit > 2 ? 5 : digit > 1 ? 2 : 1);
}

}  // namespace trivet
