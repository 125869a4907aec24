// The mistake: merges the leftmost learned pair instead of the one that was learned first. Most words come out right.
#include "docs/course/exercises/bpe_encode.h"

namespace trivet::exercise {

std::vector<int> bpe_encode(std::vector<int> tokens, const Merges& merges) {
  for (size_t i = 0; i + 1 < tokens.size();) {
    const auto found = merges.find({tokens[i], tokens[i + 1]});
    if (found == merges.end()) {
      ++i;
      continue;
    }
    tokens[i] = found->second;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    i = 0;
  }
  return tokens;
}

}  // namespace trivet::exercise
