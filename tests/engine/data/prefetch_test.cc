#include "engine/data/prefetch.h"

#include <numeric>

#include "engine/data/gpt_dataset.h"
#include "tests/engine/data/support.h"

namespace trivet {
namespace {

constexpr int64_t kSeq = 8;

class BatchLoaderTest : public testing::Test {
 protected:
  BatchLoaderTest() {
    Documents documents(30);
    int32_t next = 0;
    for (size_t i = 0; i < documents.size(); ++i) {
      documents[i].resize(i % 13 + 1);
      std::iota(documents[i].begin(), documents[i].end(), next);
      next += static_cast<int32_t>(documents[i].size());
    }
    write_dataset(directory_ / "d", documents);
    dataset_ = std::make_shared<IndexedDataset>(directory_ / "d");
  }

  GptDataset dataset(int64_t vocab_size = 1000) const {
    return {dataset_, {0, dataset_->sequences()}, {"train", kSeq, vocab_size, 1}};
  }

  TempDir directory_;
  std::shared_ptr<const IndexedDataset> dataset_;
};

void expect_samples(const GptDataset& data, const Batch& batch, int64_t first, int64_t b) {
  ASSERT_EQ(batch.first_sample, first);
  for (int64_t column = 0; column < b; ++column) {
    std::vector<int32_t> sample(kSeq + 1);
    data.sample(first + column, sample);
    for (int64_t row = 0; row < kSeq; ++row) {
      ASSERT_EQ(batch.tokens[static_cast<size_t>(row * b + column)], sample[static_cast<size_t>(row)]);
      ASSERT_EQ(batch.labels[static_cast<size_t>(row * b + column)], sample[static_cast<size_t>(row) + 1]);
    }
  }
}

TEST(BatchPlan, RanksShareEachStep) {
  // given: steps of 2 micro-batches × 3 ranks × 4 samples, from sample 100 on
  std::vector<int64_t> seen;
  for (int64_t step = 0; step < 5; ++step)
    for (int64_t j = 0; j < 2; ++j)
      for (int rank = 0; rank < 3; ++rank) seen.push_back(BatchPlan{100, 4, 2, rank, 3}.first_sample(step * 2 + j));
  // then: read by step, micro-batch and rank, the samples are consecutive
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], 100 + 4 * static_cast<int64_t>(i));
}

TEST(BatchSizes, GrowAsTheScheduleSays) {
  // Megatron: start + int(consumed / (samples / steps)) * increment, and the full batch once all are consumed.
  const BatchSizes ramp = ramp_of_batch_sizes(16, 8, 100, 40);
  for (int64_t consumed = 0; consumed < 200; ++consumed)
    EXPECT_EQ(ramp.of_step(consumed), consumed > 100 ? 40 : 16 + static_cast<int64_t>(consumed / (100 / 3.0)) * 8)
        << consumed;
  EXPECT_EQ(ramp.steps_within(16 * 3 + 24), 4);  // 0, 16, 32 -> 48: 24
  EXPECT_EQ(ramp.steps_within(16 * 3 + 23), 3);
  EXPECT_EQ(ramp.samples_of(4), 72);

  const auto sizes = parse_batch_size_schedule("0:768 250B:1536, 1T:3072", 1000);
  ASSERT_TRUE(sizes);
  EXPECT_EQ(sizes->parts, (std::vector<BatchSizes::Part>{{0, 768}, {250'000'000, 1536}, {1'000'000'000, 3072}}));
  for (const char* wrong : {"", "5:8", "0:8 0:16", "0:8 10000:0", "0:8 1X:16", "0:8 -5:16", "8", "0:8 9999999T:16"})
    EXPECT_FALSE(parse_batch_size_schedule(wrong, 1000)) << wrong;
}

TEST(BatchPlan, RanksShareEachStepOfARamp) {
  BatchPlan plan{.micro_batch_size = 2, .micro_batches = 5, .ranks = 3, .ramp = ramp_of_batch_sizes(6, 12, 20, 30)};
  for (const int64_t start : {0, 6, 12}) {
    plan.start_sample = start;
    int64_t next = start, k = 0;
    while (next < 200) {
      const int64_t m = plan.ramp.of_step(next) / 6;
      for (int64_t j = 0; j < m; ++j, ++k)
        for (plan.rank = 0; plan.rank < 3; ++plan.rank, next += 2) ASSERT_EQ(plan.first_sample(k), next);
    }
  }
}

TEST_F(BatchLoaderTest, HasNoLabelsBehindTheEndOfTheData) {
  const GptDataset data(
      dataset_, {0, 3},
      {.name = "valid", .seq_length = kSeq - 5, .vocab_size = 1000, .seed = 1, .in_order = true, .once = true});
  ASSERT_EQ(data.labels(), 5);  // documents of 1, 2 and 3 tokens
  BatchLoader loader(data, {.micro_batch_size = 3}, 0);
  const Batch& batch = loader.next();  // [s, b]: 0 1 2 3, 3 4 5 and nothing
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{0, 3, 0, 1, 4, 0, 2, 5, 0}));
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{1, 4, -1, 2, 5, -1, 3, -1, -1}));
}

TEST_F(BatchLoaderTest, GivesThePlansSamplesSequenceFirst) {
  const GptDataset data = dataset();
  for (const int64_t depth : {0, 1, 2, 5}) {
    for (int rank = 0; rank < 2; ++rank) {
      const BatchPlan plan{10, 3, 4, rank, 2};
      BatchLoader loader(data, plan, depth);
      for (int64_t k = 0; k < 50; ++k) expect_samples(data, loader.next(), plan.first_sample(k), 3);
    }
  }
}

TEST_F(BatchLoaderTest, ABatchStaysUntilTheNext) {
  const GptDataset data = dataset();
  BatchLoader loader(data, {0, 2, 1, 0, 1}, 1), reader(data, {0, 2, 1, 0, 1}, 0);
  for (int k = 0; k < 20; ++k) {
    const Batch& batch = loader.next();
    const std::vector<int32_t> before = batch.tokens;
    // Gives the loader's thread time to overwrite the batch, if it has that bug.
    for (int i = 0; i < 10; ++i) std::this_thread::yield();
    EXPECT_EQ(batch.tokens, before);
    EXPECT_EQ(reader.next().tokens, before);
  }
}

TEST_F(BatchLoaderTest, ResumesWhereItStopped) {
  const GptDataset data = dataset();
  BatchLoader whole(data, {0, 2, 3, 0, 1}, 2);
  for (int k = 0; k < 12; ++k) whole.next();
  BatchLoader resumed(data, {4 * 3 * 2, 2, 3, 0, 1}, 2);
  for (int k = 0; k < 12; ++k) EXPECT_EQ(resumed.next().tokens, whole.next().tokens);
}

TEST_F(BatchLoaderTest, RestartsForEveryEvaluation) {
  const GptDataset data = dataset();
  for (const int64_t depth : {0, 3}) {
    BatchLoader loader(data, {0, 2, 3, 0, 1}, depth);
    for (int evaluation = 0; evaluation < 4; ++evaluation) {
      if (evaluation > 0) loader.restart(0);
      for (int k = 0; k < 5; ++k) expect_samples(data, loader.next(), 2 * k, 2);
    }
    EXPECT_THROW(loader.restart(-1), Error);
  }
}

TEST_F(BatchLoaderTest, ThrowsInTurnWhatWentWrong) {
  // given: a vocabulary that leaves out the last tokens of the data, and the first sample that contains one of them
  const GptDataset data = dataset(dataset_->tokens() - 3);
  std::vector<int32_t> sample(kSeq + 1);
  int64_t bad = 0;
  try {
    for (;; ++bad) data.sample(bad, sample);
  } catch (const DataError&) {
  }
  ASSERT_GT(bad, 0);
  for (const int64_t depth : {0, 1, 4, 100}) {
    // when
    BatchLoader loader(data, {0, 1, 1, 0, 1}, depth);
    // then: all samples before it arrive, then it throws, each time
    for (int64_t k = 0; k < bad; ++k) EXPECT_EQ(loader.next().first_sample, k);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(contains(message_of<DataError>([&] { loader.next(); }), "for sample " + std::to_string(bad)));
    }
    loader.restart(0);
    EXPECT_EQ(loader.next().first_sample, 0);
  }
}

TEST_F(BatchLoaderTest, StopsWhereverItIs) {
  const GptDataset data = dataset();
  for (int used = 0; used < 40; ++used) {
    BatchLoader loader(data, {0, 2, 3, 0, 1}, 1 + used % 3);
    for (int k = 0; k < used % 5; ++k) loader.next();
  }
}

TEST_F(BatchLoaderTest, RefusesAPlanThatIsNone) {
  const GptDataset data = dataset();
  for (const BatchPlan& plan : {BatchPlan{-1, 1, 1, 0, 1}, BatchPlan{0, 0, 1, 0, 1}, BatchPlan{0, 1, 0, 0, 1},
                                BatchPlan{0, 1, 1, 1, 1}, BatchPlan{0, 1, 1, -1, 1}})
    EXPECT_THROW(BatchLoader(data, plan, 2), Error);
  EXPECT_THROW(BatchLoader(data, {}, -1), Error);
}

}  // namespace
}  // namespace trivet
