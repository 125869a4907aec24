// attention_backward: chapter 1, 45 minutes
//
// One head of causal attention over s positions: position i sees positions 0 to i.
//     scores_ij = q_i . k_j / sqrt(d),   P_i = softmax over j <= i of scores_ij,   out_i = sum_j P_ij v_j
// Given the gradient of a loss with respect to `out`, find the gradients of q, k and v. `attention` gives you P.
#pragma once

#include <vector>

namespace trivet::exercise {

using Rows = std::vector<std::vector<double>>;  // [s][d], or [s][s] for P

struct Head {
  Rows q, k, v;  // [s][d]
};

struct Attention {
  Rows probabilities, out;  // P [s][s], 0 where j > i; [s][d]
};
Attention attention(const Head& head);  // the forward pass, which the test provides

// gradient: of q, k and v, initially zero; add to it.
void attention_backward(const Head& head, const Rows& probabilities, const Rows& dout, Head& gradient);

}  // namespace trivet::exercise

// Hints
//   1. Go back step by step: out = P v gives dv_j += P_ij dout_i and dP_ij = dout_i . v_j.
//   2. For a softmax, dscores_ij = P_ij (dP_ij - sum_m P_im dP_im). The sum is one number for each row i.
//   3. dq_i += dscores_ij k_j / sqrt(d), and dk_j += dscores_ij q_i / sqrt(d): the scale belongs to both.
// In the engine: kernels/cpu/attention_backward.h, which recomputes P block by block instead of keeping it.
