#include "engine/train/generate.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <numeric>

#include "kernels/philox.h"

namespace trivet {

int32_t sample_token(std::span<const float> logits, const Sampling& sampling, double u) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  size_t candidates = order.size();
  if (sampling.temperature <= 0) candidates = 1;
  else if (sampling.top_k > 0) candidates = std::min(candidates, static_cast<size_t>(sampling.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(candidates), order.end(), likelier);
  if (candidates == 1) return order[0];

  std::vector<double> weights(candidates);
  const double top = logits[static_cast<size_t>(order[0])];
  for (size_t i = 0; i < candidates; ++i)
    weights[i] = std::exp((logits[static_cast<size_t>(order[i])] - top) / sampling.temperature);
  double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (sampling.top_p < 1) {
    double enough = 0;
    size_t i = 0;
    while (i < candidates && (i == 0 || enough < sampling.top_p * all)) enough += weights[i++];
    candidates = i;
    all = enough;
  }
  double left = u * all;
  for (size_t i = 0; i + 1 < candidates; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[candidates - 1];
}

std::vector<int32_t> generate(Rank& rank, std::span<const int32_t> prompt, const Sampling& sampling,
                              const std::function<void(int32_t token)>& on_token) {
  const GptShape& shape = rank.state.shape;
  if (prompt.empty()) throw ConfigError("the prompt has no tokens, expected at least one");
  for (const int32_t token : prompt)
    if (token < 0 || token >= shape.vocab)
      throw ConfigError(fmt::format("the prompt has token {}, but the vocabulary ends at {}", token, shape.vocab - 1));

  std::vector<int32_t> text(prompt.begin(), prompt.end());
  const auto most = static_cast<size_t>(shape.whole_seq());
  size_t seen = std::min(text.size(), most), known = 0;  // context length; how much of it the last pass saw
  while (static_cast<int64_t>(text.size() - prompt.size()) < sampling.tokens) {
    if (seen > most) {
      seen = std::max<size_t>(1, most / 2);
      known = 0;
    }
    std::vector<float> logits = rank.next_token_logits(std::span(text).last(seen), static_cast<int64_t>(known));
    known = seen++;
    if (sampling.vocab > 0) logits.resize(std::min(logits.size(), static_cast<size_t>(sampling.vocab)));
    // A document that begins here has at least one token.
    if (text.back() == sampling.stop_token)
      logits[static_cast<size_t>(sampling.stop_token)] = -std::numeric_limits<float>::infinity();
    const double u = philox4x32(text.size(), 0, sampling.seed).w[0] * 0x1p-32;
    const int32_t token = sample_token(logits, sampling, u);
    if (token == sampling.stop_token) break;
    text.push_back(token);
    if (on_token) on_token(token);
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace trivet
