// fp8_rounding: chapter 12, 40 minutes
//
// E4M3 has a sign, 4 bits of exponent and 3 bits of mantissa. Round a float to the nearest number that it can hold:
//   * normal numbers are 1.mmm x 2^e, for e from -6 to 8; the largest is 448, and larger ones become 448
//   * below 2^-6 come the subnormal numbers, 0.mmm x 2^-6: multiples of 2^-9
//   * a tie goes to the neighbour whose last bit is 0, so that ties do not drift upward
//   * infinities and NaN become NaN: a broken run must stay broken
#pragma once

namespace trivet::exercise {

float round_to_e4m3(float x);

}  // namespace trivet::exercise

// Hints
//   1. From 2^e to 2^(e + 1) the numbers are multiples of 2^(e - 3). std::ilogb(x) is e, std::ldexp(1.0f, n) is 2^n.
//   2. With an exponent below -6, the step is that of exponent -6. This is all that subnormal numbers need.
//   3. std::nearbyint rounds ties to even. std::round does not.
// In the engine: kernels/base/fp8.h:Fp8Format, on the bits of a float and without branches.
