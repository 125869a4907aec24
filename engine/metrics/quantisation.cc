#include "engine/metrics/quantisation.h"

#include <charconv>
#include <cmath>
#include <fmt/format.h>

#include "kernels/base/fp8.h"

namespace trivet {

QuantisationReport::Sums& QuantisationReport::Sums::operator+=(const Sums& other) {
  for (double Sums::*x : {&Sums::numbers, &Sums::zeroed, &Sums::cut, &Sums::squares, &Sums::squared_errors})
    this->*x += other.*x;
  return *this;
}

namespace {

double scale_of(int64_t element, const Tensor& scale, const Tensor& values) {
  return scale.as<float>()[ScaleBlocks(scale, values).index(element / values.cols(), element % values.cols())];
}

}  // namespace

void QuantisationReport::run(const AnyOp& any, Stream& stream) {
  ops_->run(any, stream);
  const auto* const op = std::get_if<op::Quantize>(&any);
  if (!op || (op->amax && !std::isfinite(op->amax.as<float>()[0]))) return;  // a non-finite step
  if (stream.label().first_unit < 0) return;  // repeated for a deferred weight-gradient pass
  const auto unit = static_cast<size_t>(stream.label().first_unit);
  if (of_unit_.size() <= unit) of_unit_.resize(unit + 1);
  Sums& sums = of_unit_[unit][op->role];
  dispatch_fp8(op->values.dtype, [&]<class Format>() {
    dispatch_float(op->x.dtype, [&]<class T>() {
      for (int64_t i = 0; i < op->x.numel(); ++i) {
        const double x = static_cast<float>(op->x.as<T>()[i]), scale = scale_of(i, op->scale, op->values);
        const double q = Format::decode(static_cast<const uint8_t*>(op->values.data)[i]) * scale;
        if (std::isfinite(x))
          sums += {1, double(x != 0 && q == 0), double(std::abs(x) > Format::kMax * scale), x * x, (q - x) * (q - x)};
      }
    });
  });
}

TextBlock QuantisationReport::table(const std::vector<ParamUnit>& units, int64_t layers, HostWorld& host) const {
  std::vector<Roles> mine(static_cast<size_t>(layers));
  for (size_t unit = 0; unit < of_unit_.size() && unit < units.size(); ++unit) {
    const std::string& name = units[unit].name;  // "layer 3"
    size_t layer = mine.size();
    if (name.starts_with("layer ")) std::from_chars(name.data() + 6, name.data() + name.size(), layer);
    if (layer >= mine.size()) continue;
    for (size_t role = 0; role < mine[layer].size(); ++role) mine[layer][role] += of_unit_[unit][role];
  }
  const std::vector<Roles> all = host.gather(mine);
  TextBlock block{"what quantisation did"};
  block.column("", 'l');
  for (const char* name : {"became zero", "cut off", "error"}) block.column(name, 'r');
  for (int64_t layer = 0; layer < layers; ++layer)
    for (size_t role = 0; role < mine[0].size(); ++role) {
      Sums sum;
      for (size_t at = static_cast<size_t>(layer); at < all.size(); at += mine.size()) sum += all[at][role];
      if (sum.numbers == 0) continue;
      const auto percent = [](double part, double whole) {
        return whole > 0 ? fmt::format("{:.3g}%", 100 * part / whole) : "-";
      };
      constexpr const char* kNames[] = {"weights", "activations", "gradients"};
      block.rows.push_back({fmt::format("layer {} {}", layer, kNames[role]), percent(sum.zeroed, sum.numbers),
                            percent(sum.cut, sum.numbers),
                            percent(std::sqrt(sum.squared_errors), std::sqrt(sum.squares))});
    }
  return block;
}

}  // namespace trivet
