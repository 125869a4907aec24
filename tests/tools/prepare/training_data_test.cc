#include "engine/data/training_data.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <set>
#include <sys/stat.h>

#include "base/text.h"
#include "engine/data/blend.h"
#include "engine/data/sentencepiece_tokenizer.h"
#include "tests/engine/data/support.h"
#include "tools/prepare/prepare.h"

namespace trivet {
namespace {

int64_t labels(const Samples& data) { return data.labels_of(int64_t{1} << 40); }  // over all of it

class TrainingDataTest : public testing::Test {
 protected:
  // A dataset of this many one-line documents.
  std::string prepared(const std::string& name, int documents, std::optional<int64_t> vocab_size = std::nullopt) {
    std::string text;
    for (const std::string& sentence : made_up_sentences(documents, 21)) text += sentence + "\n\n";
    write_text(directory_ / (name + ".txt"), text);
    PrepareOptions options;
    options.inputs = {directory_ / (name + ".txt")};
    options.output = directory_ / name;
    options.text.mode = DocumentMode::paragraph;
    options.tokenizer = vocab_size ? "sentencepiece" : "bytes";
    options.vocab_size = vocab_size;
    prepare_dataset(options);
    return options.output;
  }

  TempDir directory_;
  DataConfig config_;
};

TEST_F(TrainingDataTest, CutsOneDataset) {
  config_.path = prepared("d", 100);
  config_.split = {90, 10, 0};
  const TrainingData data = open_data(config_, 32, 257, true);
  const IndexedDataset dataset(config_.path);
  EXPECT_EQ(labels(*data.train) + 1, dataset.begin(90));
  EXPECT_EQ(labels(*data.valid) + 1, dataset.tokens() - dataset.begin(90));
  EXPECT_EQ(open_data(config_, 32, 257, false).valid, nullptr);
}

TEST_F(TrainingDataTest, TakesTwoDatasets) {
  config_.train_path = prepared("a", 50);
  EXPECT_EQ(open_data(config_, 32, 257, false).valid, nullptr);
  config_.valid_path = prepared("b", 20);
  const TrainingData data = open_data(config_, 32, 257, true);
  EXPECT_EQ(labels(*data.train) + 1, IndexedDataset(config_.train_path).tokens());
  EXPECT_EQ(labels(*data.valid) + 1, IndexedDataset(config_.valid_path).tokens());
}

TEST_F(TrainingDataTest, RefusesASplitThatLeavesNoDocument) {
  config_.path = prepared("d", 20);
  config_.split = {1, 0.001};
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { open_data(config_, 32, 257, true); }),
                       "data.split is \"1,0.001\", which leaves none of the 20 documents of"));
}

TEST_F(TrainingDataTest, KnowsTheVocabulary) {
  config_.path = prepared("d", 500, 320);
  EXPECT_EQ(data_vocabulary(config_)->size, 320);
  EXPECT_EQ(data_vocabulary(config_)->source, config_.path + ".json");
  // Without the sidecar, the model determines the vocabulary; without both, nothing does, and any size is accepted.
  std::filesystem::remove(config_.path + ".json");
  EXPECT_EQ(data_vocabulary(config_)->source, config_.path + ".model");
  std::filesystem::rename(config_.path + ".model", directory_ / "elsewhere.model");
  EXPECT_FALSE(data_vocabulary(config_).has_value());
  open_data(config_, 32, 500, true);
  config_.tokenizer_model = directory_ / "elsewhere.model";
  EXPECT_EQ(data_vocabulary(config_)->size, 320);
}

TEST_F(TrainingDataTest, RefusesTwoTokenizers) {
  config_.train_path = prepared("a", 500, 320);
  config_.valid_path = prepared("b", 50);
  const std::string message = message_of<DataError>([&] { data_vocabulary(config_); });
  EXPECT_TRUE(contains(message, "a.json has 320 ids"));
  EXPECT_TRUE(contains(message, "b.json has 257 ids (bytes)"));
  config_.valid_path.clear();
  config_.tokenizer_model = directory_ / "other.model";
  write_text(config_.tokenizer_model, train_sentencepiece(made_up_sentences(900, 5), 320));
  EXPECT_TRUE(contains(message_of<DataError>([&] { data_vocabulary(config_); }), "other.model has 320 ids"));
}

TEST_F(TrainingDataTest, BlendsDatasets) {
  const std::string a = prepared("a", 60), b = prepared("b", 200);
  config_.path = "3," + a + ",1," + b;
  config_.split = {90, 10, 0};
  const TrainingData data = open_data(config_, 32, 257, true);
  const auto alone = [&](const std::string& prefix) {
    config_.path = prefix;
    return open_data(config_, 32, 257, true);
  };
  const TrainingData of_a = alone(a), of_b = alone(b);
  for (const auto part : {&TrainingData::train, &TrainingData::valid}) {
    EXPECT_EQ((data.*part)->labels_of(8), (6 + 2) * 32);
    Blend blend({3, 1}, std::vector<int64_t>(2, std::numeric_limits<int64_t>::max()));
    std::vector<int32_t> found(33), expected(33);
    for (int64_t i = 0; i < 3000; i += 1 + i / 100) {
      const Blend::Place place = blend.at(i);
      (data.*part)->sample(i, found);
      ((place.source == 0 ? of_a : of_b).*part)->sample(place.sample, expected);
      ASSERT_EQ(found, expected) << i;
    }
  }
  EXPECT_EQ(data.identities.at("data.path"), of_a.identities.at("data.path") + "; " + of_b.identities.at("data.path"));
  ASSERT_EQ(data.sources.rows.size(), 4u);
  EXPECT_EQ(data.sources.rows[2][0], a);
  EXPECT_EQ(data.sources.rows[2][1], "validation set: documents 55 to 60 of 60");
  EXPECT_EQ(data.sources.rows[0][0], a);
  EXPECT_TRUE(contains(data.sources.rows[0][1], "75.0% of the samples")) << data.sources.rows[0][1];
  EXPECT_TRUE(contains(data.sources.rows[0][1], counted(labels(*of_a.train) + 1, "token")));
  EXPECT_TRUE(contains(data.sources.rows[0][1],
                       fmt::format("{:.4g} epochs", 75 * 32.0 / static_cast<double>(labels(*of_a.train) + 1))));
  // without weights: by size
  config_.path = a + "," + b;
  const double size = static_cast<double>(labels(*of_a.train) + 1);
  EXPECT_TRUE(contains(open_data(config_, 32, 257, false).sources.rows[0][1],
                       percent_text(size / (size + static_cast<double>(labels(*of_b.train) + 1)))));
}

// data.seed alone determines the order of the samples.
TEST_F(TrainingDataTest, HasTheOrderOfItsSeed) {
  config_.path = prepared("d", 100);
  config_.split = {100, 0, 0};
  const auto order = [&](int64_t data_seed, int64_t train_seed) {
    Config run;
    run.data = config_;
    run.data.seed = data_seed;
    run.train.seed = train_seed;
    run.model.seq_length = 32;
    run.model.vocab_size = 257;
    const TrainingData data = open_training_data(run, 100);
    std::vector<int32_t> tokens(33), all;
    for (int64_t i = 0; i < 20; ++i) data.train->sample(i, tokens), all.insert(all.end(), tokens.begin(), tokens.end());
    return all;
  };
  EXPECT_EQ(order(1, 1), order(1, 2));
  EXPECT_NE(order(1, 1), order(2, 1));
}

TEST_F(TrainingDataTest, NamesWhatIsWrongWithASourceOfABlend) {
  const std::string a = prepared("a", 500, 320), b = prepared("b", 50), c = prepared("c", 2);
  config_.path = a + "," + b;
  const std::string message = message_of<DataError>([&] { data_vocabulary(config_); });
  EXPECT_TRUE(message.starts_with("data.path: the datasets have different tokenizers: " + a + ".json has 320 ids"))
      << message;
  config_.path = b + "," + (directory_ / "none");
  EXPECT_TRUE(message_of<ConfigError>([&] {
                open_data(config_, 32, 257, false);
              }).starts_with("data.path: there is no dataset " + (directory_ / "none")));
  config_.path = b + "," + c;
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { open_data(config_, 32, 257, true); }),
                       "leaves none of the 2 documents of " + c));
}

// All whole windows of both datasets, each exactly once.
TEST_F(TrainingDataTest, EndWhereTheyAreNotToRepeat) {
  const std::string a = prepared("a", 20), b = prepared("b", 30);
  Config config;
  config.data.split = {100, 0, 0};
  config.data.repeat = false;
  config.model.seq_length = 32;
  config.model.vocab_size = 257;
  const auto read = [&](const std::string& path, int64_t samples) {
    config.data.path = path;
    const TrainingData data = open_training_data(config, static_cast<double>(samples));
    std::multiset<std::vector<int32_t>> seen;
    std::vector<int32_t> tokens(33);
    for (int64_t i = 0; i < samples; ++i) {
      data.train->sample(i, tokens);
      EXPECT_EQ(std::ranges::count(tokens, -1), 0);
      seen.insert(tokens);
    }
    data.train->sample(samples, tokens);
    EXPECT_EQ(tokens, std::vector<int32_t>(33, -1));
    EXPECT_TRUE(
        message_of<ConfigError>([&] {
          open_training_data(config, static_cast<double>(samples + 1));
        }).starts_with(fmt::format("data.repeat: false gives {} samples, and the run takes {}", samples, samples + 1)));
    return seen;
  };
  const auto windows = [](const std::string& prefix) { return (IndexedDataset(prefix).tokens() - 1) / 32; };
  auto both = read(a, windows(a));
  EXPECT_EQ(std::set(both.begin(), both.end()).size(), both.size());
  both.merge(read(b, windows(b)));
  EXPECT_EQ(read("5," + a + ",1," + b, windows(a) + windows(b)), both);
}

// The last sample of each source is partial: a validation loss is the mean over the labels that there are.
TEST_F(TrainingDataTest, AWholeBlendHasTheLabelsThatItsSamplesHold) {
  Config config;
  config.data.train_path = prepared("a", 20);
  config.data.valid_path = "5," + config.data.train_path + ",1," + prepared("b", 30);
  config.model.seq_length = 32;
  config.model.vocab_size = 257;
  config.train.eval_interval = 1;
  config.train.full_validation = true;
  const TrainingData data = open_training_data(config, 1);
  const int64_t samples = data.valid->samples();
  std::vector<int32_t> tokens(33);
  int64_t held = 0;
  for (int64_t i = 0; i < samples; ++i) {
    data.valid->sample(i, tokens);
    held += 32 - std::count(tokens.begin() + 1, tokens.end(), -1);
  }
  ASSERT_NE(held, 32 * samples);
  EXPECT_EQ(data.valid->labels_of(samples), held);
}

// A wrong name is an error in the configuration; a wrong file is bad data. Both messages name the key.
TEST_F(TrainingDataTest, NamesTheKeyOfAFileThatIsNotThere) {
  const std::string none = directory_ / "none";
  const auto open = [&] { open_data(config_, 32, 257, false); };
  config_.path = none;
  EXPECT_TRUE(message_of<ConfigError>(open).starts_with("data.path: there is no dataset " + none)) << none;
  config_.path.clear();
  config_.train_path = none;
  EXPECT_TRUE(message_of<ConfigError>(open).starts_with("data.train_path: there is no dataset " + none));
  config_.train_path = prepared("a", 30);
  config_.valid_path = none;
  EXPECT_TRUE(message_of<ConfigError>([&] {
                open_data(config_, 32, 257, true);
              }).starts_with("data.valid_path: there is no dataset " + none));
  std::filesystem::remove(config_.train_path + ".bin");
  EXPECT_EQ(message_of<DataError>(open), "data.train_path: " + config_.train_path +
                                             ".bin does not exist, expected it next to " + config_.train_path + ".idx");
  config_.tokenizer_model = none;
  EXPECT_EQ(message_of<ConfigError>([&] { data_vocabulary(config_); }),
            "data.tokenizer_model: " + none + ": there is no such file, expected a tokenizer");
  config_.tokenizer_model = directory_ / "a.txt";
  EXPECT_TRUE(message_of<DataError>([&] {
                data_vocabulary(config_);
              }).starts_with("data.tokenizer_model: " + config_.tokenizer_model + ": not a SentencePiece model"));
  config_.tokenizer_model = directory_ / "";
  EXPECT_EQ(message_of<DataError>([&] { data_vocabulary(config_); }),
            "data.tokenizer_model: " + config_.tokenizer_model + ": not a regular file");
}

// The other tokenizer has the same size, so every id is in its vocabulary.
TEST_F(TrainingDataTest, RefusesATokenizerThatWasExchanged) {
  config_.path = prepared("d", 500, 320);
  open_data(config_, 32, 320, false);
  write_text(config_.path + ".model", train_sentencepiece(made_up_sentences(900, 5), 320));
  EXPECT_TRUE(contains(message_of<DataError>([&] { open_data(config_, 32, 320, false); }),
                       "d.model: not the tokenizer that the dataset was made with: found fingerprint "));
  std::filesystem::remove(config_.path + ".model");  // training does not need it
  open_data(config_, 32, 320, false);
}

// Ranks compare fingerprints before they train: each part of a stale copy of the same size changes them.
TEST_F(TrainingDataTest, IsFingerprintedByLengthsTokensAndSidecar) {
  const auto fingerprints = [&](const Documents& documents) {
    write_dataset(directory_ / "d", documents);
    config_.path = directory_ / "d";
    config_.split = {100, 0, 0};
    std::string text;
    for (const auto& [what, fingerprint] : open_data(config_, 4, 257, false).fingerprints) text += fingerprint + "\n";
    return text;
  };
  const Documents documents{{1, 2, 3}, {4, 5, 6, 7, 8}, {9}}, reversed{{1}, {2, 3, 4, 5, 6}, {7, 8, 9}},
      other{{1, 2, 3}, {4, 5, 6, 7, 8}, {10}}, shorter{{1, 2, 3}, {4, 5, 6, 7, 8}};
  const std::set<std::string> all{fingerprints(documents), fingerprints(reversed), fingerprints(other),
                                  fingerprints(shorter)};
  EXPECT_EQ(all.size(), 4u);
  EXPECT_TRUE(all.contains(fingerprints(documents)));
}

// Links are followed; anything but a file is refused before anything waits for it.
TEST_F(TrainingDataTest, TakesSymbolicLinksAndNoPipes) {
  config_.path = prepared("d", 100);
  const std::string linked = directory_ / "linked";
  for (const char* suffix : {".bin", ".idx", ".json"})
    std::filesystem::create_symlink(config_.path + suffix, linked + suffix);
  config_.path = linked;
  open_data(config_, 32, 257, false);
  for (const char* suffix : {".json", ".idx", ".bin"}) {
    std::filesystem::remove(linked + suffix);
    ASSERT_EQ(mkfifo((linked + suffix).c_str(), 0600), 0);
    EXPECT_TRUE(
        contains(message_of<Error>([&] { open_data(config_, 32, 257, false); }), std::string("linked") + suffix + ": "))
        << suffix;
    std::filesystem::remove(linked + suffix);
    std::filesystem::create_symlink(linked + suffix, linked + suffix);  // to itself
    EXPECT_TRUE(contains(message_of<Error>([&] { open_data(config_, 32, 257, false); }), "linked")) << suffix;
    std::filesystem::remove(linked + suffix);
    std::filesystem::create_symlink((directory_ / "d") + suffix, linked + suffix);
  }
}

TEST_F(TrainingDataTest, RefusesASidecarOfAnotherDataset) {
  config_.path = prepared("d", 100);
  const std::string other = prepared("e", 60);
  std::filesystem::copy_file(other + ".json", config_.path + ".json",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(contains(message_of<DataError>([&] { open_data(config_, 32, 257, false); }), "not written together"));
}

}  // namespace
}  // namespace trivet
