// The documents of packed samples: Megatron's numbers if EOD ends every document, and the same numbers without EOD.
#include <algorithm>
#include <numeric>
#include <random>

#include "engine/data/gpt_dataset.h"
#include "engine/data/prefetch.h"
#include "tests/engine/data/support.h"

namespace trivet {
namespace {

constexpr int32_t kEod = 7;

struct Masks {
  std::vector<int32_t> position_ids;
  std::vector<std::vector<bool>> sees;  // [query][key]
  std::vector<bool> counts;
};

// Megatron-Core's GPTDataset._get_ltor_masks_and_position_ids with all three options, line by line.
Masks as_megatron(const std::vector<int32_t>& tokens) {
  const size_t s = tokens.size();
  Masks masks{std::vector<int32_t>(s), std::vector(s, std::vector<bool>(s)), std::vector<bool>(s, true)};
  std::iota(masks.position_ids.begin(), masks.position_ids.end(), 0);
  for (size_t i = 0; i < s; ++i) {
    std::fill_n(masks.sees[i].begin(), i + 1, true);
    masks.counts[i] = tokens[i] != kEod;
  }
  int32_t previous = 0;
  for (size_t i = 0; i < s; ++i) {
    if (tokens[i] != kEod) continue;
    for (size_t q = i + 1; q < s; ++q) std::fill_n(masks.sees[q].begin(), i + 1, false);
    for (size_t q = i + 1; q < s; ++q) masks.position_ids[q] -= static_cast<int32_t>(i) + 1 - previous;
    previous = static_cast<int32_t>(i) + 1;
  }
  return masks;
}

constexpr DocumentRules kAll{true, true, true, kEod};

Masks masks_of(const std::vector<int32_t>& tokens, const std::vector<int32_t>& ends,
               const DocumentRules& rules = kAll) {
  Masks masks;
  DocumentWalk walk(rules, ends);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto [position_id, start, label] = walk.next(static_cast<int32_t>(i), tokens[i], 9);
    masks.position_ids.push_back(position_id);
    masks.counts.push_back(label == 9);
    std::vector<bool>& sees = masks.sees.emplace_back(tokens.size());
    for (size_t key = static_cast<size_t>(start); key <= i; ++key) sees[key] = true;
  }
  return masks;
}

void expect_equal(const Masks& found, const Masks& expected) {
  EXPECT_EQ(found.position_ids, expected.position_ids);
  EXPECT_EQ(found.sees, expected.sees);
  EXPECT_EQ(found.counts, expected.counts);
}

TEST(Documents, AreMegatrons) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 50; ++round) {
    std::vector<int32_t> tokens(16), ends;
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 4) + 4;  // EOD with probability 1/4
    if (round % 2 == 0) tokens.back() = kEod;
    expect_equal(masks_of(tokens, {}), as_megatron(tokens));
    // The dataset marks the same document ends as EOD does; then only the dataset marks them.
    for (int32_t i = 0; i < 16; ++i)
      if (tokens[static_cast<size_t>(i)] == kEod) ends.push_back(i + 1);
    expect_equal(masks_of(tokens, ends), as_megatron(tokens));
    const std::vector<int32_t> without(16, 1);
    expect_equal(masks_of(without, ends, {true, true, true, -1}), as_megatron(tokens));
  }
}

// Megatron-Bridge PR 4660: the loss was masked where the label is EOD, so EOD was never learnt.
TEST(Documents, TheLossIsMaskedAtTheLastTokenNotBeforeIt) {
  DocumentWalk walk(kAll, {});
  const std::vector<int32_t> ids{5, kEod, 3, 8}, labels{kEod, 3, 8, 9};
  std::vector<int32_t> found;
  for (size_t i = 0; i < 4; ++i) found.push_back(walk.next(static_cast<int32_t>(i), ids[i], labels[i]).label);
  EXPECT_EQ(found, (std::vector<int32_t>{kEod, kMaskedLabel, 8, 9}));
  DocumentRules unmasked = kAll;
  unmasked.eod_mask_loss = false;
  DocumentWalk other(unmasked, {});
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(other.next(static_cast<int32_t>(i), ids[i], labels[i]).label, labels[i]);
}

// Samples of a dataset that begin inside a document, end where one ends, or contain several, some of them empty.
TEST(Documents, OfADatasetWithoutEodAreThoseOfOneWithIt) {
  // given: the same documents; in one dataset the last token of each is EOD
  TempDir directory;
  Documents plain(40), ended;
  std::mt19937_64 random(3);
  for (auto& document : plain) document.assign(random() % 4 == 0 ? 0 : random() % 12 + 1, 1);
  for (auto document : plain) {
    if (!document.empty()) document.back() = kEod;
    ended.push_back(document);
  }
  write_dataset(directory / "plain", plain);
  write_dataset(directory / "ended", ended);
  const auto open = [&](const char* name) {
    auto indexed = std::make_shared<IndexedDataset>(directory / name);
    return GptDataset(indexed, {0, indexed->sequences()}, {"train", 8, 1000, 1});
  };
  const GptDataset without = open("plain"), with = open("ended");
  // when
  const BatchPlan plan{.micro_batch_size = 2};
  BatchLoader a(without, plan, 0, {true, true, true, -1}), b(with, plan, 0, kAll);
  // then
  for (int i = 0; i < 20; ++i) {
    const Batch &of_a = a.next(), &of_b = b.next();
    EXPECT_EQ(of_a.position_ids, of_b.position_ids);
    EXPECT_EQ(of_a.starts, of_b.starts);
    for (size_t t = 0; t < of_a.labels.size(); ++t)
      EXPECT_EQ(of_a.labels[t] == kMaskedLabel, of_b.labels[t] == kMaskedLabel);
    for (int64_t column = 0; column < 2; ++column) {
      std::vector<int32_t> tokens, ids;
      for (size_t row = 0; row < 8; ++row) {
        tokens.push_back(of_b.tokens[row * 2 + static_cast<size_t>(column)]);
        ids.push_back(of_b.position_ids[row * 2 + static_cast<size_t>(column)]);
      }
      EXPECT_EQ(ids, as_megatron(tokens).position_ids);
    }
  }
}

}  // namespace
}  // namespace trivet
