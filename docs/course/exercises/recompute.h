// recompute: chapter 9, 35 minutes
//
// n layers run in a row. Keep only the inputs of layers 0, every, 2 every, …, each of which begins a group. The
// backward pass goes through the groups from the last to the first: it runs a group forward once more, keeps the inputs
// of its layers, and goes back through them. The layers have dropout: they draw random numbers, and have to draw the
// same ones the second time. So keep the state of the generator too.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/philox.h"

namespace trivet::exercise {

struct Random {
  uint64_t draws = 0;                                                 // so far: all of the generator's state
  double next() { return philox4x32(draws++, 0, 1).w[0] * 0x1p-32; }  // from 0 to 1
};

struct Layer {
  double weight;
  double forward(double x, Random& random) const { return std::sin(weight * x) * 2 * random.next(); }
  // The gradient of x, from that of y. `random` is as it was when forward() was called.
  double backward(double x, double dy, Random random) const {
    return dy * weight * std::cos(weight * x) * 2 * random.next();
  }
};

struct Checkpoint {
  size_t layer;
  double input;
  Random random;
};
std::vector<Checkpoint> forward_keeping_few(std::span<const Layer> layers, double x, size_t every, Random& random);
// dy: the gradient of the last layer's output. Returns the gradient of the first layer's input.
double backward_recomputing(std::span<const Layer> layers, const std::vector<Checkpoint>& kept, double dy);

}  // namespace trivet::exercise

// Hints
//   1. A checkpoint has the input and the generator as they are before the layer runs.
//   2. Backward: a group ends where the next checkpoint's layer begins; the last group ends with the last layer.
//   3. In a group, copy the checkpoint's `random`, and note its state before each layer next to the layer's input.
// In the engine: engine/model/recompute.h. Its dropout needs no state: see exercise philox_dropout.
// Paper: Chen et al. 2016.
