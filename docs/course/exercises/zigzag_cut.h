// zigzag_cut: chapter 13, 20 minutes
//
// c ranks share a causal sequence of s positions. A position attends to all positions before it, so the first ones
// are the least work and the last ones the most. Give each rank s / c positions so that all ranks have the same work.
#pragma once

#include <cstdint>
#include <vector>

namespace trivet::exercise {

// Ascending. REQUIRES: s % (2 ranks) == 0
std::vector<int64_t> zigzag_positions(int64_t s, int ranks, int rank);

}  // namespace trivet::exercise

// Hints
//   1. Cut the sequence into 2 c pieces. Each rank has two of them.
//   2. The work of a piece grows along the sequence: pair the first piece with the last one.
//   3. Rank r has pieces r and 2 c - 1 - r.
// In the engine: parallel/context/cut.h:ContextCut; docs/context.md has the picture. Paper: Llama Team 2024.
