// Documents in the headline test: with per-document positions, attention and labels, every layout gives one rank's
// losses, norms and evaluations; the mean is over the counted labels, never a mean of means.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <mutex>
#include <span>

#include "tests/support/tensors.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

// Without clipping, which would hide a wrong factor, as Adam does.
Config with_documents(bool llama) {
  Config config = tiny_model(llama);
  config.optimizer.clip_grad = 0;
  config.data.reset_position_ids = config.data.reset_attention_mask = config.data.eod_mask_loss = true;
  return config;
}
const Curve& one_rank_of_documents(bool llama) {
  static const Curve curves[2] = {train_on_threads(with_documents(false), 1, kMatrixSteps),
                                  train_on_threads(with_documents(true), 1, kMatrixSteps)};
  return curves[llama];
}

class DocumentsLayout : public testing::TestWithParam<Cut> {};

TEST_P(DocumentsLayout, HasTheLossesOfOneRank) {
  for (const bool llama : {false, true}) {
    SCOPED_TRACE(llama);
    expect_near(train_on_threads(cut(with_documents(llama), GetParam()), GetParam().ranks(), kMatrixSteps, true),
                one_rank_of_documents(llama));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, DocumentsLayout,
    testing::Values(Cut{.t = 2, .sequence_parallel = true}, Cut{.p = 2, .schedule = "zb-v"}, Cut{.d = 4},
                    Cut{.d = 2, .strategy = "optim_grads_params"}, Cut{.c = 2},
                    Cut{.c = 4, .cp_comm_type = CpCommType::all_gather},
                    Cut{.t = 2, .p = 2, .sequence_parallel = true, .schedule = "interleaved", .v = 2, .c = 2}),
    [](const auto& info) {
      const Cut& c = info.param;
      std::string name = fmt::format("t{}_p{}_{}_d{}_{}_c{}", c.t, c.p, c.schedule, c.d, c.strategy, c.c);
      std::ranges::replace(name, '-', '_');
      return name;
    });

TEST(DocumentsLayout, MicroBatchesOfAnySizeHaveOneMean) {
  Config config = with_documents(false);
  config.batch.micro_batch_size = 4;
  expect_near(train_on_threads(config, 1, kMatrixSteps), one_rank_of_documents(false));
  config.batch.micro_batch_size = 1;
  config.overlap.average_in_collective = true;
  expect_near(train_on_threads(config, 2, kMatrixSteps), one_rank_of_documents(false));
}

// Each combination of the keys gives a different loss.
TEST(DocumentsLayout, EachKeyChangesTheLoss) {
  std::vector<double> first;
  for (int keys = 0; keys < 8; ++keys) {
    Config config = tiny_model(keys % 2 == 0);
    config.data.reset_position_ids = keys & 1, config.data.reset_attention_mask = keys & 2;
    config.data.eod_mask_loss = keys & 4;
    config.model.init_method_std = 0.2;
    first.push_back(train_on_threads(config, 1, 1).losses[0]);
  }
  std::ranges::sort(first);
  EXPECT_EQ(std::ranges::adjacent_find(first), first.end());
}

// ---- a batch without a counted label

class OneBatch : public BatchSource {
 public:
  const Batch& next() override { return batch; }
  void restart(int64_t) override {}
  Batch batch;
};

// Documents packed into rows give the same loss, gradients and next losses as a run without document boundaries and
// with one document per row.
TEST(DocumentsLayout, AreTheDocumentsAlone) {
  constexpr int64_t kSeq = 16;
  const std::vector<std::vector<int64_t>> rows{{5, 11}, {9, 7}};
  constexpr double kCounted = 28, kAlone = 64;  // labels: all but those at last tokens; and all of four rows
  const auto token = [](int64_t document, int64_t i) { return static_cast<int32_t>((document * 17 + i * 7) % 61); };
  for (const bool llama : {false, true}) {
    SCOPED_TRACE(llama);
    const auto steps = [&](const Config& config, const OneBatch& batch) {
      std::vector<StepResult> results;
      run_thread_ranks(1, [&](Communicator& world) {
        const Resolved run = resolved(config, 1);
        OneBatch source = batch;
        Trainer trainer(run.config, run.layout, world, &source);
        for (int i = 0; i < 3; ++i) results.push_back(trainer.step());
      });
      return results;
    };
    // given: a step that is linear in the gradient
    Config packed = with_documents(llama);
    packed.optimizer.adam_eps = 1e4, packed.optimizer.weight_decay = 0;
    packed.optimizer.lr_decay_style = LrDecay::constant, packed.optimizer.lr_warmup_iters = 0;
    packed.optimizer.min_lr.reset(), packed.optimizer.lr_decay_iters.reset();
    packed.optimizer.lr = 1e3;
    packed.batch.global_batch_size = 2;
    Config alone = packed;
    alone.data = tiny_config().data;
    alone.batch.micro_batch_size = 4, alone.batch.global_batch_size = 4;
    alone.optimizer.lr = 1e3 * kAlone / kCounted;
    OneBatch of_packed, of_alone;
    for (std::vector<int32_t>* to :
         {&of_packed.batch.tokens, &of_packed.batch.labels, &of_packed.batch.position_ids, &of_packed.batch.starts})
      to->assign(2 * kSeq, 0);
    of_alone.batch.tokens.assign(4 * kSeq, 0), of_alone.batch.labels.assign(4 * kSeq, kNoLabel);
    for (int64_t row = 0, document = 0; row < 2; ++row) {
      int64_t start = 0;
      for (const int64_t length : rows[static_cast<size_t>(row)]) {
        for (int64_t i = 0; i < length; ++i) {
          const auto to = static_cast<size_t>((start + i) * 2 + row), apart = static_cast<size_t>(i * 4 + document);
          const bool last = i + 1 == length;
          of_packed.batch.tokens[to] = of_alone.batch.tokens[apart] = token(document, i);
          of_packed.batch.labels[to] = last ? kMaskedLabel : token(document, i + 1);
          of_alone.batch.labels[apart] = last ? kNoLabel : token(document, i + 1);
          of_packed.batch.position_ids[to] = static_cast<int32_t>(i);
          of_packed.batch.starts[to] = static_cast<int32_t>(start);
        }
        start += length, ++document;
      }
    }
    // when
    const auto found = steps(packed, of_packed), wanted = steps(alone, of_alone);
    // then
    for (size_t i = 0; i < 3; ++i) {
      const double loss = wanted[i].loss * kAlone / kCounted, norm = wanted[i].grad_norm * kAlone / kCounted;
      EXPECT_NEAR(found[i].loss, loss, 2e-5 * loss) << i;
      EXPECT_NEAR(found[i].grad_norm, norm, 1e-4 * norm) << i;
    }
    EXPECT_LT(found[2].loss, found[0].loss - 0.05) << "the steps are too small to tell";
  }
}

// Changing a token of one document changes no bit of the other documents' logits (as a loss over their labels alone
// shows) or of their activations' gradients (which end in their tokens' embedding rows). In FP8 this holds with
// per-position scales but not with per-tensor scales. To show that, a norm gives its first column a weight of 512, and
// the changed token is nonzero in that column only, so its magnitude is by far the largest.
TEST(DocumentsLayout, ATokenChangesItsOwnDocumentAlone) {
  constexpr int64_t kSeq = 16, kRows = 2, kVocab = 61;
  constexpr int32_t kToken = 3, kOther = 11;
  const std::string kEmbedding = "embedding.word_embeddings.weight";
  constexpr int64_t kLengths[kRows] = {7, 10};  // of each row's first document; a second document takes the rest
  struct Found {
    double loss;
    std::vector<float> gradients;  // [vocab, h] of the word embeddings
  };
  const auto step = [&](const Config& config, int ranks, int32_t first_token, bool first_counts) {
    OneBatch batch;
    Batch& of = batch.batch;
    for (std::vector<int32_t>* to : {&of.tokens, &of.labels, &of.position_ids, &of.starts}) to->resize(kSeq * kRows);
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t i = 0; i < kSeq; ++i) {
        const auto at = static_cast<size_t>(i * kRows + row);
        const bool second = i >= kLengths[row];
        const int64_t document = 2 * row + second, start = second ? kLengths[row] : 0;
        of.tokens[at] = static_cast<int32_t>(document * 15 + i * 7 % 15);  // 15 token ids per document
        of.labels[at] = document == 0 && !first_counts ? kMaskedLabel : static_cast<int32_t>(i * 11 % kVocab);
        of.position_ids[at] = static_cast<int32_t>(i - start), of.starts[at] = static_cast<int32_t>(start);
      }
    of.tokens[0] = first_token;
    Found found{};
    std::mutex mutex;
    run_thread_ranks(ranks, [&](Communicator& world) {
      const Resolved run = resolved(config, ranks);
      OneBatch source = batch;
      Trainer trainer(run.config, run.layout, world, &source);
      for (const Param& param : trainer.state().params.all()) {
        const std::string& name = param.spec.name;
        if (name.ends_with("norm.weight")) set(param.weight, 0, 512);
        const int64_t row = kOther - param.first_row(), width = param.weight.cols();
        if (name != kEmbedding || row < 0 || row >= param.weight.rows()) continue;
        for (int64_t j = 0; j < width; ++j) set(param.weight, row * width + j, j == 0 ? 100 : 0);
      }
      const double loss = trainer.step().loss;
      const std::lock_guard lock(mutex);
      found.loss = loss;
      for (const Param& param : trainer.state().params.all()) {
        if (param.spec.name != kEmbedding) continue;
        found.gradients.resize(static_cast<size_t>(run.layout.padded_vocab * param.grad.cols()));
        std::copy_n(param.grad.as<float>(), param.grad.numel(),
                    found.gradients.begin() + param.first_row() * param.grad.cols());
      }
    });
    return found;
  };
  for (const bool llama : {false, true})
    for (const char* precision : {"fp32", "bf16", "tensorwise", "blockwise"})
      for (const Cut& how : {Cut{}, Cut{.t = 2, .sequence_parallel = true}, Cut{.c = 2}}) {
        SCOPED_TRACE(fmt::format("{} {} t {} c {}", llama, precision, how.t, how.c));
        Config config = cut(with_documents(llama), how);
        config.model.untie_embeddings_and_output_weights = true;
        config.batch = {.micro_batch_size = kRows, .global_batch_size = kRows};
        if (precision != std::string_view("fp32")) config.precision.dtype = DType::bf16;
        if (std::string_view(precision).ends_with("wise"))
          config.precision.fp8 = Fp8::e4m3, set_key(config, "precision.fp8_recipe", precision);
        const Found one = step(config, how.ranks(), kToken, true), other = step(config, how.ranks(), kOther, true);
        EXPECT_NE(one.loss, other.loss);
        const double alone = step(config, how.ranks(), kToken, false).loss;
        const double beside = step(config, how.ranks(), kOther, false).loss;
        const size_t width = static_cast<size_t>(config.model.hidden_size), first = 15 * width, end = 60 * width;
        const std::span ours = std::span(one.gradients).subspan(first, end - first);
        const std::span theirs = std::span(other.gradients).subspan(first, end - first);
        const bool same = std::ranges::equal(ours, theirs);
        if (precision != std::string_view("tensorwise")) {
          EXPECT_EQ(alone, beside);
          EXPECT_TRUE(same);
        } else {
          EXPECT_NE(alone, beside) << "no law of scales of tensors: else the other cases prove little";
          EXPECT_FALSE(same);
        }
      }
}

TEST(EodMaskLoss, AStepWithoutALabelThatCountsIsCountedAndChangesNothing) {
  for (const int d : {1, 2}) {
    Config config = with_documents(false);
    config.batch.global_batch_size = 4;
    run_thread_ranks(d, [&](Communicator& world) {
      const Resolved run = resolved(config, d);
      OneBatch source;
      source.batch.tokens.assign(32, 3), source.batch.labels.assign(32, 5);
      source.batch.position_ids.assign(32, 0), source.batch.starts.assign(32, 0);
      Trainer trainer(run.config, run.layout, world, &source);
      trainer.step();
      const auto weights = [&] { return bytes_of(trainer, trainer.state().flat.owned.front().weight); };
      const auto before = weights();
      // when: no label counts; then only one does, on rank 0
      std::ranges::fill(source.batch.labels, kMaskedLabel);
      const StepResult none = trainer.step();
      EXPECT_EQ(none.step, 2);
      EXPECT_TRUE(none.skipped);
      EXPECT_EQ(none.loss, 0);
      EXPECT_NE(none.warning.find("no label"), std::string::npos) << none.warning;
      EXPECT_EQ(weights(), before);
      EXPECT_TRUE(trainer.numbers_ok());
      EXPECT_THROW(evaluate(trainer, source, 1), NumericsError);
      if (world.rank() == 0) source.batch.labels[7] = 5;
      const StepResult some = trainer.step();
      EXPECT_FALSE(some.skipped);
      EXPECT_NE(weights(), before);
      EXPECT_GT(some.loss, 1);
      EXPECT_LT(some.loss, 10);
    });
  }
}

}  // namespace
}  // namespace trivet::test
