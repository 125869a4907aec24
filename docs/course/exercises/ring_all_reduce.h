// ring_all_reduce: chapter 3, 40 minutes
//
// Every rank has n numbers, and wants the sums over all p ranks. A rank sends only to the next rank, and receives only
// from the previous one. So that all links are busy in every step, cut the numbers into p chunks, which need not be
// of the same length. First each chunk travels round the ring and collects its sum (a reduce-scatter); then the
// finished chunks travel round (an all-gather). A rank sends 2 (p - 1) chunks in all.
#pragma once

#include <span>

#include "docs/course/exercises/support/ranks.h"

namespace trivet::exercise {

struct Ring {
  Communicator& group;
  Stream& stream;
  size_t sent = 0;  // numbers

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  // Sends `out` to the next rank, and fills `in` with what the previous rank sends.
  void exchange(std::span<float> out, std::span<float> in) {
    sent += out.size();
    const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
    group.exchange(tensor_of(out), next, tensor_of(in), previous, stream);
  }
};

void ring_all_reduce(Ring& ring, std::span<float> x);

}  // namespace trivet::exercise

// Hints
//   1. With chunk i from n i / p to n (i + 1) / p, all numbers are in a chunk, whatever n is.
//   2. In step k of the reduce-scatter, rank r sends chunk r - k, and adds what arrives to chunk r - k - 1 (modulo p).
//   3. After that, rank r has the sum of chunk r + 1. In step k of the all-gather it sends chunk r + 1 - k.
// In the engine: parallel/tensor/overlap.h, where a ring hides GEMMs; NCCL's rings work the same way. The sums of
// parallel/comm/rank_order_reduce.cc are taken in rank order instead, so that their bits do not depend on chunks.
