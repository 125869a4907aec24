#include "engine/data/gpt_dataset.h"

#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "engine/data/shuffle.h"
#include "tests/engine/data/support.h"

namespace trivet {
namespace {

// Documents of random lengths, some empty, in which every token has a unique id, so that a token identifies its place.
Documents numbered_documents(int count, int longest, uint64_t seed) {
  std::mt19937_64 random(seed);
  Documents documents(static_cast<size_t>(count));
  int32_t next = 0;
  for (auto& document : documents) {
    document.resize(random() % 4 == 0 ? 0 : random() % static_cast<uint64_t>(longest));
    std::iota(document.begin(), document.end(), next);
    next += static_cast<int32_t>(document.size());
  }
  return documents;
}

struct Fixture {
  TempDir directory;
  std::shared_ptr<const IndexedDataset> dataset;

  explicit Fixture(const Documents& documents) {
    write_dataset(directory / "d", documents, TokenType::i32);
    dataset = std::make_shared<IndexedDataset>(directory / "d");
  }
  DocumentRange all() const { return {0, dataset->sequences()}; }
};

std::vector<int32_t> sample_of(const GptDataset& data, int64_t index) {
  std::vector<int32_t> tokens(static_cast<size_t>(data.seq_length()) + 1);
  data.sample(index, tokens);
  return tokens;
}

// The definition: concatenated epochs of shuffled documents, split into windows that overlap by one, shuffled by epoch.
std::vector<std::vector<int32_t>> reference_samples(const Documents& documents, int64_t s, uint64_t seed, int epochs) {
  std::vector<int32_t> stream;
  std::vector<size_t> epoch_ends;
  for (int epoch = 0; epoch <= epochs; ++epoch) {
    for (const uint32_t i :
         permutation(static_cast<uint32_t>(documents.size()), seed, 2u * static_cast<unsigned>(epoch)))
      stream.insert(stream.end(), documents[i].begin(), documents[i].end());
    epoch_ends.push_back(stream.size());
  }
  std::vector<std::vector<int32_t>> samples;
  size_t start = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    std::vector<std::vector<int32_t>> windows;
    for (; start < epoch_ends[static_cast<size_t>(epoch)]; start += static_cast<size_t>(s)) {
      const auto first = stream.begin() + static_cast<std::ptrdiff_t>(start);
      windows.emplace_back(first, first + s + 1);
    }
    for (const uint32_t i :
         permutation(static_cast<uint32_t>(windows.size()), seed, 2u * static_cast<unsigned>(epoch) + 1))
      samples.push_back(windows[i]);
  }
  return samples;
}

TEST(Permutation, IsOneAndDependsOnSeedAndStream) {
  for (const uint32_t n : {0u, 1u, 2u, 3u, 10u, 1000u}) {
    std::vector<uint32_t> order = permutation(n, 7, 3), sorted(n);
    std::iota(sorted.begin(), sorted.end(), 0u);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, sorted);
  }
  EXPECT_EQ(permutation(1000, 7, 3), permutation(1000, 7, 3));
  EXPECT_NE(permutation(1000, 7, 3), permutation(1000, 8, 3));
  EXPECT_NE(permutation(1000, 7, 3), permutation(1000, 7, 4));
}

TEST(Permutation, NeverChanges) {
  // A run resumed with a later Trivet must see the same data.
  EXPECT_EQ(permutation(8, 1234, 0), (std::vector<uint32_t>{2, 0, 5, 7, 1, 6, 4, 3}));
}

TEST(Permutation, IsUniform) {
  // given: all orders of four elements
  constexpr int kDraws = 24000;
  std::map<std::vector<uint32_t>, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[permutation(4, 99, static_cast<uint64_t>(i))];
  // then: each about equally often; chi-square with 23 degrees of freedom is below 60 except for one seed in 30,000
  EXPECT_EQ(counts.size(), 24u);
  double chi_square = 0;
  for (const auto& [order, count] : counts) chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 60);
}

using Shares = std::vector<double>;

TEST(SplitDocuments, CutsAsMegatron) {
  using Ranges = std::array<DocumentRange, 3>;
  EXPECT_EQ(split_documents(Shares{98, 2, 0}, 1000), (Ranges{{{0, 980}, {980, 1000}, {1000, 1000}}}));
  EXPECT_EQ(split_documents(Shares{969, 30, 1}, 126300), (Ranges{{{0, 122385}, {122385, 126174}, {126174, 126300}}}));
  EXPECT_EQ(split_documents(Shares{1}, 5), (Ranges{{{0, 5}, {5, 5}, {5, 5}}}));
  EXPECT_EQ(split_documents(Shares{0, 1}, 5), (Ranges{{{0, 0}, {0, 5}, {5, 5}}}));
  // Half to even, as Python rounds: 2.5 and 7.5 documents.
  EXPECT_EQ(split_documents(Shares{1, 1}, 5)[0].end, 2);
  EXPECT_EQ(split_documents(Shares{1, 1}, 15)[0].end, 8);
  EXPECT_EQ(split_documents(Shares{98, 2, 0}, 0), (Ranges{}));
}

TEST(SplitDocuments, CoversEveryDocumentOnce) {
  for (const Shares& split : {Shares{98, 2, 0}, {1, 1, 1}, {0.1, 0.2, 0.7}, {3, 0, 4}, {1e-3, 1e3}}) {
    for (int64_t documents = 0; documents < 200; ++documents) {
      const auto [train, valid, test] = split_documents(split, documents);
      EXPECT_EQ(train.begin, 0);
      EXPECT_EQ(train.end, valid.begin);
      EXPECT_EQ(valid.end, test.begin);
      EXPECT_EQ(test.end, documents);
    }
  }
}

TEST(GptDataset, SamplesAreTheWindowsOfTheShuffledDocuments) {
  for (const int64_t s : {1, 2, 7, 64}) {
    // given
    const Documents documents = numbered_documents(40, 30, 5);
    const Fixture fixture(documents);
    const GptDataset data(fixture.dataset, fixture.all(), {"train", s, 10000, 42});
    // when: three epochs by the definition
    const auto expected = reference_samples(documents, s, 42, 3);
    // then
    ASSERT_EQ(data.first_sample(3), static_cast<int64_t>(expected.size()));
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(sample_of(data, static_cast<int64_t>(i)), expected[i]) << "sample " << i << " of length " << s;
  }
}

TEST(GptDataset, EveryTokenOfEveryEpochIsALabelOnce) {
  // given: a number of tokens that the sequence length does not divide
  const Documents documents = numbered_documents(50, 20, 1);
  const Fixture fixture(documents);
  const GptDataset data(fixture.dataset, fixture.all(), {"train", 16, 10000, 3});
  const int64_t tokens = data.tokens_per_epoch(), epochs = 16;
  ASSERT_NE(tokens % 16, 0);
  // when: sixteen epochs, which are a whole number of windows
  std::map<int32_t, int64_t> labels;
  ASSERT_EQ(data.first_sample(epochs), tokens);
  for (int64_t i = 0; i < data.first_sample(epochs); ++i) {
    const auto sample = sample_of(data, i);
    for (size_t j = 1; j < sample.size(); ++j) ++labels[sample[j]];
  }
  // then: each of the stream's positions 1 … 16 * tokens; position 0 has no input, the last is from the next epoch
  int64_t off_by_one = 0;
  ASSERT_EQ(static_cast<int64_t>(labels.size()), tokens);
  for (const auto& [token, count] : labels) {
    EXPECT_LE(std::abs(count - epochs), 1) << token;
    off_by_one += count != epochs;
  }
  EXPECT_LE(off_by_one, 2);
}

TEST(GptDataset, OnceIsTheDocumentsInOrderAndThenNothing) {
  const Documents documents = numbered_documents(50, 20, 1);
  const Fixture fixture(documents);
  std::vector<int32_t> stream;
  for (const auto& document : documents) stream.insert(stream.end(), document.begin(), document.end());
  const auto tokens = static_cast<int64_t>(stream.size());
  for (const int64_t s : {1, 2, 7, static_cast<int>(tokens - 1)}) {
    const GptDataset data(
        fixture.dataset, fixture.all(),
        {.name = "valid", .seq_length = s, .vocab_size = 10000, .seed = 42, .in_order = true, .once = true});
    EXPECT_EQ(data.labels(), tokens - 1);
    std::vector<int32_t> found = {stream[0]};
    for (int64_t i = 0; i < data.samples(); ++i) {
      const auto sample = sample_of(data, i);
      EXPECT_EQ(sample[0], found.back());
      found.insert(found.end(), sample.begin() + 1, sample.end());
    }
    while (found.size() > stream.size()) {
      EXPECT_EQ(found.back(), -1);
      found.pop_back();
    }
    EXPECT_EQ(found, stream) << s;
    for (const int64_t behind : {data.samples(), data.samples() + 1, data.samples() + 1000})
      EXPECT_EQ(sample_of(data, behind), std::vector<int32_t>(static_cast<size_t>(s) + 1, -1));
  }
}

// A book: offsets in a document exceed 16 bits.
TEST(GptDataset, WindowsOfALongDocumentFollowEachOther) {
  Documents book(1, std::vector<int32_t>(200'001));
  std::iota(book[0].begin(), book[0].end(), 0);
  const Fixture fixture(book);
  const GptDataset data(fixture.dataset, fixture.all(),
                        {.name = "valid", .seq_length = 1000, .vocab_size = 300'000, .seed = 42, .in_order = true});
  for (int64_t i = 0; i < 200; ++i) {
    const std::vector<int32_t> tokens = sample_of(data, i);
    ASSERT_EQ(tokens.front(), 1000 * i);
    ASSERT_EQ(tokens.back(), 1000 * (i + 1));
  }
}

TEST(GptDataset, SplitsDoNotOverlap) {
  const Documents documents = numbered_documents(300, 20, 2);
  const Fixture fixture(documents);
  const auto ranges = split_documents(Shares{70, 20, 10}, fixture.dataset->sequences());
  std::set<int32_t> seen;
  size_t total = 0;
  for (const DocumentRange range : ranges) {
    const GptDataset data(fixture.dataset, range, {"split", 8, 10000, 3});
    std::set<int32_t> mine;
    for (int64_t i = 0; i < data.first_sample(2); ++i)
      for (const int32_t token : sample_of(data, i)) mine.insert(token);
    EXPECT_EQ(static_cast<int64_t>(mine.size()), data.tokens_per_epoch());
    total += mine.size();
    seen.insert(mine.begin(), mine.end());
  }
  EXPECT_EQ(seen.size(), total);
}

TEST(GptDataset, DependsOnSeedAndIndexOnly) {
  // given: one reader that reads forward, one that jumps
  const Fixture fixture(numbered_documents(60, 20, 4));
  const GptDataset forward(fixture.dataset, fixture.all(), {"train", 8, 10000, 1});
  const GptDataset jumping(fixture.dataset, fixture.all(), {"train", 8, 10000, 1});
  const GptDataset other(fixture.dataset, fixture.all(), {"train", 8, 10000, 2});
  const int64_t samples = forward.first_sample(6);
  std::vector<std::vector<int32_t>> expected;
  int64_t same = 0;
  for (int64_t i = 0; i < samples; ++i) {
    expected.push_back(sample_of(forward, i));
    same += expected.back() == sample_of(other, i);
  }
  // then
  std::mt19937_64 random(6);
  for (int i = 0; i < 500; ++i) {
    const auto index = random() % static_cast<uint64_t>(samples);
    ASSERT_EQ(sample_of(jumping, static_cast<int64_t>(index)), expected[index]);
  }
  EXPECT_LT(same, samples / 10);
  EXPECT_NE(expected[0], expected[static_cast<size_t>(forward.first_sample(1))]) << "epochs are shuffled anew";
}

TEST(GptDataset, MayBeReadByManyThreads) {
  const Fixture fixture(numbered_documents(60, 20, 4));
  const GptDataset data(fixture.dataset, fixture.all(), {"train", 8, 10000, 1});
  const int64_t samples = data.first_sample(5);
  std::vector<std::vector<std::vector<int32_t>>> seen(4);
  std::vector<std::thread> threads;
  for (auto& mine : seen)
    threads.emplace_back([&] {
      for (int64_t i = 0; i < samples; ++i) mine.push_back(sample_of(data, i));
    });
  for (auto& thread : threads) thread.join();
  for (const auto& mine : seen) EXPECT_EQ(mine, seen[0]);
}

TEST(GptDataset, WorksWithOneSampleAnEpoch) {
  const Fixture fixture({{0, 1, 2}, {3, 4}});
  const GptDataset data(fixture.dataset, fixture.all(), {"train", 4, 5, 1});
  const auto expected = reference_samples({{0, 1, 2}, {3, 4}}, 4, 1, 40);
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(sample_of(data, static_cast<int64_t>(i)), expected[i]);
}

TEST(GptDataset, RefusesTooFewTokens) {
  const auto message = [](const Documents& documents) {
    const Fixture fixture(documents);
    return message_of<DataError>([&] { GptDataset(fixture.dataset, fixture.all(), {"valid", 4, 10, 1}); });
  };
  EXPECT_TRUE(contains(message({{0, 1}, {2, 3}}),
                       "the valid data is 4 tokens in 2 documents (2 in the dataset), expected at least 5"));
  EXPECT_TRUE(contains(message({}), "0 tokens in 0 documents"));
  EXPECT_TRUE(contains(message({{}, {}}), "0 tokens in 2 documents"));
}

TEST(GptDataset, NamesATokenOutsideTheVocabulary) {
  for (const int32_t bad : {9, -1}) {
    Fixture fixture({{0, 1, 2, 3}, {4, 5, 6, 7}});
    std::string bytes = read_text(fixture.directory / "d.bin");
    std::memcpy(bytes.data() + 5 * sizeof(bad), &bad, sizeof(bad));
    write_text(fixture.directory / "d.bin", bytes);
    const GptDataset data(fixture.dataset, fixture.all(), {"train", 7, 9, 1});
    const std::string message = message_of<DataError>([&] { sample_of(data, 0); });
    EXPECT_TRUE(contains(message, fixture.directory / "d.bin"));
    EXPECT_TRUE(contains(message, "token id " + std::to_string(bad) + " at token 1 of document 1"));
    EXPECT_TRUE(contains(message, "sample 0 of the train data, expected 0 to 8"));
  }
}

TEST(GptDataset, RefusesWrongCalls) {
  const Fixture fixture(numbered_documents(60, 20, 4));
  const GptDataset data(fixture.dataset, fixture.all(), {"train", 8, 10000, 1});
  std::vector<int32_t> tokens(9), few(8);
  EXPECT_THROW(data.sample(-1, tokens), Error);
  EXPECT_THROW(data.sample(0, few), Error);
  EXPECT_THROW(data.sample(std::numeric_limits<int64_t>::max(), tokens), Error);
  data.sample(1'000'000'000'000'000, tokens);  // a distant epoch costs no more than an early one
  EXPECT_THROW(GptDataset(fixture.dataset, {0, 61}, {"train", 8, 10000, 1}), Error);
  EXPECT_THROW(GptDataset(fixture.dataset, {0, 60}, {"train", 0, 10000, 1}), Error);
}

}  // namespace
}  // namespace trivet
