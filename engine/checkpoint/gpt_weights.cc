#include "engine/checkpoint/gpt_weights.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/config/fields.h"
#include "engine/config/validate.h"

namespace trivet {

int64_t parameters_of(const std::vector<GptTensor>& tensors) {
  int64_t sum = 0;
  for (const GptTensor& tensor : tensors) sum += tensor.shape.numel();
  return sum;
}

void GptWeights::set_model(const Config& config) {
  for (const Field& field : fields()) {
    if (field.section() != "model") continue;
    if (const auto problem = check_field(field, config))
      throw DataError(fmt::format("{}: {}: {}", path_, field.name, *problem));
  }
  const ModelConfig& model = config.model;
  if (!model.ffn_hidden_size || !model.vocab_size)
    throw DataError(path_ + ": model.ffn_hidden_size and model.vocab_size: found auto, expected numbers");
  if (model.hidden_size % model.num_attention_heads != 0)
    throw DataError(fmt::format("{}: {} heads do not divide the hidden size {}", path_, model.num_attention_heads,
                                model.hidden_size));
  config_.model = config.model;
  config_.precision = config.precision;
  tensors_ = gpt_tensors(model_spec_of(config_.model));
}

std::vector<float> transposed(std::span<const float> matrix, int64_t rows, int64_t cols) {
  std::vector<float> out(matrix.size());
  constexpr int64_t kTile = 32;  // of which both sides fit a first-level cache
  for (int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (int64_t c0 = 0; c0 < cols; c0 += kTile)
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c)
          out[static_cast<size_t>(c * rows + r)] = matrix[static_cast<size_t>(r * cols + c)];
  return out;
}

namespace {

// Calls move(row where heads are joined, row where they are split) for each block of hidden / heads rows.
template <class F>
void for_each_head(int64_t heads, int64_t hidden, F&& move) {
  const int64_t rows = hidden / heads;
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t part = 0; part < 3; ++part) move((3 * head + part) * rows, part * hidden + head * rows, rows);
}

}  // namespace

std::vector<float> split_heads(std::span<const float> rows, int64_t heads, int64_t hidden) {
  std::vector<float> out(rows.size());
  const auto cols = static_cast<int64_t>(rows.size()) / (3 * hidden);
  for_each_head(heads, hidden, [&](int64_t joined, int64_t split, int64_t n) {
    std::copy_n(rows.data() + joined * cols, n * cols, out.data() + split * cols);
  });
  return out;
}

std::vector<float> join_heads(std::span<const float> rows, int64_t heads, int64_t hidden) {
  std::vector<float> out(rows.size());
  const auto cols = static_cast<int64_t>(rows.size()) / (3 * hidden);
  for_each_head(heads, hidden, [&](int64_t joined, int64_t split, int64_t n) {
    std::copy_n(rows.data() + split * cols, n * cols, out.data() + joined * cols);
  });
  return out;
}

}  // namespace trivet
