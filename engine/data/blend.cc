#include "engine/data/blend.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace trivet {
namespace {

void normalize(std::vector<double>& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (sum > 0)
    for (double& share : shares) share /= sum;
}

}  // namespace

Blend::Blend(std::vector<double> weights, std::vector<int64_t> sizes)
    : weights_(std::move(weights)),
      sizes_(std::move(sizes)),
      cursor_{.shares = weights_,
              .taken = std::vector<int64_t>(sizes_.size()),
              .at_base = std::vector<int64_t>(sizes_.size())} {
  normalize(cursor_.shares);
  anchors_.push_back(cursor_);
}

Blend::Place Blend::at(int64_t index) {
  const Cursor& anchor = anchors_[std::min(static_cast<size_t>(index / kAnchor), anchors_.size() - 1)];
  if (index < cursor_.index || cursor_.index < anchor.index) cursor_ = anchor;
  while (cursor_.index < index) advance();
  const size_t source = choose();
  return {source, source < sizes_.size() ? cursor_.taken[source] : 0};
}

size_t Blend::choose() const {
  const auto passed = static_cast<double>(std::max<int64_t>(cursor_.index - cursor_.base, 1));  // as in Megatron
  double most = -std::numeric_limits<double>::infinity();
  size_t chosen = sizes_.size();
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const double error = cursor_.shares[i] * passed - static_cast<double>(cursor_.taken[i] - cursor_.at_base[i]);
    if (cursor_.shares[i] > 0 && error > most) most = error, chosen = i;
  }
  return chosen;
}

void Blend::advance() {
  const size_t source = choose();
  ++cursor_.index;
  if (source < sizes_.size() && ++cursor_.taken[source] == sizes_[source]) {
    cursor_.base = cursor_.index;
    cursor_.at_base = cursor_.taken;
    cursor_.shares[source] = 0;
    normalize(cursor_.shares);
  }
  if (cursor_.index == static_cast<int64_t>(anchors_.size()) * kAnchor) anchors_.push_back(cursor_);
}

std::vector<double> Blend::expected(double total) const {
  std::vector<double> counts(sizes_.size()), shares = weights_;
  for (bool again = true; again;) {
    again = false;
    normalize(shares);
    for (size_t i = 0; i < sizes_.size() && !again; ++i) {
      if (shares[i] == 0) continue;
      again = shares[i] * total > static_cast<double>(sizes_[i]);
      counts[i] = again ? static_cast<double>(sizes_[i]) : shares[i] * total;
      if (again) total -= counts[i], shares[i] = 0;
    }
  }
  return counts;
}

}  // namespace trivet
