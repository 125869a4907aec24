#include "docs/course/exercises/bpe_encode.h"

namespace trivet::exercise {

std::vector<int> bpe_encode(std::vector<int> tokens, const Merges& merges) {
  while (true) {
    auto best = merges.end();
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = merges.find({tokens[i], tokens[i + 1]});
      if (found != merges.end() && (best == merges.end() || found->second < best->second)) best = found;
    }
    if (best == merges.end()) return tokens;
    std::vector<int> merged;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool is_pair = i + 1 < tokens.size() && std::pair(tokens[i], tokens[i + 1]) == best->first;
      merged.push_back(is_pair ? best->second : tokens[i]);
      if (is_pair) ++i;
    }
    tokens = std::move(merged);
  }
}

}  // namespace trivet::exercise
