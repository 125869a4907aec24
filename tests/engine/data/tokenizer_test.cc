#include "engine/data/tokenizer.h"

#include <random>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "engine/data/dataset_info.h"
#include "engine/data/sentencepiece_tokenizer.h"
#include "tests/engine/data/support.h"

namespace trivet {
namespace {

constexpr int64_t kVocab = 400;

// Trained once for all tests.
const std::string& trained_model() {
  static const std::string model = train_sentencepiece(made_up_sentences(2000, 1), kVocab);
  return model;
}

class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(std::vector<std::string> all) : all_(std::move(all)) {}
  bool done() const override { return next_ == all_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return all_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string> all_;
  size_t next_ = 0;
};

// A model as others train it: with a character normalisation table, a leading space and the options given.
std::string foreign_model(const std::string& type, const std::string& byte_fallback) {
  Lines lines(made_up_sentences(500, 2));
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train({{"model_type", type},
                                                                  {"vocab_size", "350"},
                                                                  {"byte_fallback", byte_fallback},
                                                                  {"hard_vocab_limit", "false"},
                                                                  {"minloglevel", "2"}},
                                                                 &lines, &model);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return model;
}

// Sentences with bytes replaced at random, and texts that tokenizers stumble over.
std::vector<std::string> odd_texts(int count, uint64_t seed) {
  std::vector<std::string> texts = made_up_sentences(count, seed);
  std::mt19937_64 random(seed);
  for (std::string& text : texts)
    for (auto changes = random() % 6; changes-- > 0;) text[random() % text.size()] = static_cast<char>(random());
  texts.insert(texts.end(),
               {"", " ", "    ", "\n", " \n\t ", "  two  spaces  ", "</s><unk><0x41>", "\xe2\x96\x81",
                "a\xe2\x96\x81 b \xe2\x96\x81\xe2\x96\x81 c", "\xff\xfe", "cut off \xe2\x96", "\xf0\x9f\x98\x80",
                std::string("\0a\0", 3), std::string(5000, 'e'), std::string(5000, ' ')});
  return texts;
}

TEST(BytesTokenizer, GivesEveryByteBack) {
  const auto tokenizer = make_bytes_tokenizer();
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const auto tokens = tokenizer->encode(all);
  for (int32_t byte = 0; byte < 256; ++byte) EXPECT_EQ(tokens[static_cast<size_t>(byte)], byte);
  EXPECT_EQ(tokenizer->decode(tokens), all);
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eod(), 256);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{65, 256, 66}), "AB");
  EXPECT_EQ(tokenizer->piece(65), "A");
  EXPECT_EQ(tokenizer->piece(10), "<0x0A>");
  EXPECT_EQ(tokenizer->piece(256), "<eod>");
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{257}), DataError);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), DataError);
}

TEST(SentencePiece, TrainsTheSameModelAgain) {
  EXPECT_EQ(train_sentencepiece(made_up_sentences(2000, 1), kVocab), trained_model());
}

TEST(SentencePiece, HasTheVocabularyAskedFor) {
  const auto tokenizer = make_sentencepiece(trained_model(), "m");
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  EXPECT_EQ(tokenizer->vocab_size(), kVocab);
  EXPECT_EQ(tokenizer->piece(tokenizer->eod()), "</s>");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{tokenizer->eod()}), "");
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{kVocab}), DataError);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), DataError);
  EXPECT_THROW(tokenizer->piece(kVocab), DataError);
}

TEST(SentencePiece, GivesTextBack) {
  const auto tokenizer = make_sentencepiece(trained_model(), "m");
  std::vector<std::string> texts = made_up_sentences(200, 9);  // not those that the model was trained on
  texts.insert(texts.end(), {"", " ", "  indented\n\tand\r\n  wrapped  ", "\xe6\x97\xa5\xe6\x9c\xac", "</s>",
                             "\xf0\x9f\x98\x80", std::string(3, '\0'), "a\n\n\nb"});
  for (const std::string& text : texts) EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST(SentencePiece, CompressesWhatItWasTrainedOn) {
  const auto tokenizer = make_sentencepiece(trained_model(), "m");
  size_t bytes = 0, tokens = 0;
  for (const std::string& text : made_up_sentences(200, 1)) {
    bytes += text.size();
    tokens += tokenizer->encode(text).size();
  }
  EXPECT_GT(static_cast<double>(bytes) / static_cast<double>(tokens), 1.4);  // 1 or less without any merge
}

TEST(SentencePiece, NeverMakesTheEndOfDocumentFromText) {
  const auto tokenizer = make_sentencepiece(trained_model(), "m");
  for (const std::string& text : odd_texts(200, 3))
    for (const int32_t token : tokenizer->encode(text)) EXPECT_NE(token, tokenizer->eod());
}

TEST(SentencePiece, OurWayThroughTheLibraryGivesItsTokens) {
  // given: our model, which encodes word by word, and others, which do not
  for (const std::string& model : {trained_model(), foreign_model("bpe", "true"), foreign_model("unigram", "false"),
                                   foreign_model("char", "true")}) {
    const auto tokenizer = make_sentencepiece(model, "m");
    sentencepiece::SentencePieceProcessor library;
    ASSERT_TRUE(library.LoadFromSerializedProto(model).ok());
    // when: every text twice, to hit cached words
    for (int round = 0; round < 2; ++round) {
      for (const std::string& text : odd_texts(300, 4)) {
        std::vector<int> expected;
        ASSERT_TRUE(library.Encode(text, &expected).ok());
        ASSERT_EQ(tokenizer->encode(text), expected) << text;
      }
    }
  }
}

TEST(SentencePiece, CutsLongTextsWithoutATrace) {
  // given: more text than is passed to the library in one call
  std::string text;
  for (uint64_t seed = 0; text.size() < 200'000; ++seed)
    for (const std::string& sentence : made_up_sentences(2000, seed)) text += sentence + " ";
  const std::string model = foreign_model("char", "true");
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(model).ok());
  std::vector<int> expected;
  ASSERT_TRUE(library.Encode(text, &expected).ok());
  EXPECT_EQ(make_sentencepiece(model, "m")->encode(text), expected);
  // and: one word that long
  std::string word;
  while (word.size() < 200'000) word += "\xe6\x97\xa5";
  const auto tokenizer = make_sentencepiece(trained_model(), "m");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(word)), word);
}

TEST(SentencePiece, RefusesAVocabularyThatTheTextCannotFill) {
  const std::string message = message_of<ConfigError>([] { train_sentencepiece({"a b a b a b"}, 5000); });
  EXPECT_TRUE(contains(message, "of 5000 ids on this text: Vocabulary size too high (5000)"));
  EXPECT_FALSE(contains(message, ".cc(")) << "the library's source: " << message;
}

TEST(SentencePiece, RefusesAModelWithoutAnEnd) {
  Lines lines(made_up_sentences(500, 2));
  std::string model;
  ASSERT_TRUE(sentencepiece::SentencePieceTrainer::Train(
                  {{"vocab_size", "100"}, {"hard_vocab_limit", "false"}, {"eos_id", "-1"}, {"minloglevel", "2"}},
                  &lines, &model)
                  .ok());
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { make_sentencepiece(model, "m"); }), "m: has no end-of-sentence piece"));
}

TEST(SentencePiece, RefusesWhatIsNoModel) {
  const TempDir directory;
  const std::string path = directory / "x.model";
  EXPECT_TRUE(contains(message_of<IoError>([&] { load_sentencepiece(path); }), path));
  for (const std::string& bytes :
       {std::string(), std::string("not a model"), std::string(1000, '\0'), std::string(1000, '\xff')}) {
    write_text(path, bytes);
    EXPECT_TRUE(contains(message_of<DataError>([&] { load_sentencepiece(path); }), path));
  }
}

// A model that opens must work without crashing, whatever its bytes.
void expect_harmless(const std::string& model, uint64_t seed) {
  try {
    const auto tokenizer = make_sentencepiece(model, "m");
    for (const std::string& text : odd_texts(2, seed)) {
      const auto tokens = tokenizer->encode(text);
      for (const int32_t token : tokens) ASSERT_TRUE(token >= 0 && token < tokenizer->vocab_size());
      tokenizer->decode(tokens);
    }
  } catch (const DataError&) {
  }
}

TEST(SentencePiece, SurvivesTruncation) {
  const std::string foreign = foreign_model("unigram", "true");
  for (size_t size = 0; size < trained_model().size(); size += 7)
    expect_harmless(trained_model().substr(0, size), size);
  for (size_t size = 0; size < foreign.size(); size += 997) expect_harmless(foreign.substr(0, size), size);
}

TEST(SentencePiece, SurvivesRandomDamage) {
  // given: damage near the front, the end, and the table of characters, where the library trusts what it reads
  const std::string foreign = foreign_model("unigram", "true");
  const size_t table = foreign.find("nmt_nfkc");
  ASSERT_NE(table, std::string::npos);
  std::mt19937_64 random(7);
  for (int round = 0; round < 400; ++round) {
    std::string model = round % 2 ? foreign : trained_model();
    for (auto changes = 1 + random() % 4; changes-- > 0;) {
      const size_t places[] = {random() % model.size(), model.size() - 1 - random() % 200,
                               (table + random() % 4000) % model.size()};
      const size_t at = places[random() % 3];
      switch (random() % 4) {
        case 0: model[at] = static_cast<char>(random()); break;
        case 1: model[at] = static_cast<char>(model[at] ^ 1 << random() % 8); break;
        case 2: model.erase(at, 1 + random() % 4); break;
        case 3: model.insert(at, 1 + random() % 4, static_cast<char>(random())); break;
      }
    }
    expect_harmless(model, random());
  }
}

TEST(SentencePiece, RefusesADamagedTableOfCharacters) {
  // given: a model whose table contains a unit, for 'a', that points far beyond the table
  const std::string model = foreign_model("unigram", "true");
  const size_t table = model.find("nmt_nfkc") + 8 + 4 + 4;
  int refused = 0;
  for (size_t i = 0; i < 20; ++i) {
    std::string damaged = model;
    damaged.replace(table + 4 + i * 4, 4, "\x61\xff\xff\x7f");
    try {
      make_sentencepiece(damaged, "m");
    } catch (const DataError& error) {
      refused += std::string(error.what()).find("table of characters is damaged") != std::string::npos;
    }
  }
  EXPECT_GT(refused, 0);
}

DatasetInfo info_of(const Tokenizer& tokenizer) {
  return {tokenizer.kind(), tokenizer.fingerprint(), tokenizer.vocab_size(), tokenizer.eod(), 2, 5, 7, "hash"};
}

TEST(OpenTokenizer, OpensWhatMadeTheDataset) {
  const TempDir directory;
  const std::string prefix = directory / "d";
  write_text(prefix + ".json", to_json(info_of(*make_bytes_tokenizer())));
  EXPECT_EQ(open_tokenizer(prefix)->kind(), "bytes");
  write_text(prefix + ".model", trained_model());
  write_text(prefix + ".json", to_json(info_of(*make_sentencepiece(trained_model(), "m"))));
  EXPECT_EQ(open_tokenizer(prefix)->vocab_size(), kVocab);
  std::filesystem::remove(prefix + ".json");
  EXPECT_EQ(open_tokenizer(prefix)->vocab_size(), kVocab);
  std::filesystem::remove(prefix + ".model");
  EXPECT_TRUE(contains(message_of<DataError>([&] { open_tokenizer(prefix); }), "neither " + prefix + ".json, "));
}

TEST(OpenTokenizer, RefusesAnotherModelThanTheDatasets) {
  const TempDir directory;
  const std::string prefix = directory / "d", other = train_sentencepiece(made_up_sentences(2000, 5), kVocab);
  write_text(prefix + ".json", to_json(info_of(*make_sentencepiece(trained_model(), "m"))));
  EXPECT_THROW(open_tokenizer(prefix), IoError);
  write_text(prefix + ".model", other);
  const std::string message = message_of<DataError>([&] { open_tokenizer(prefix); });
  EXPECT_TRUE(contains(message, prefix + ".model has 400 ids"));
  EXPECT_TRUE(contains(message, make_sentencepiece(other, "m")->fingerprint()));
  EXPECT_TRUE(contains(message, make_sentencepiece(trained_model(), "m")->fingerprint()));
}

TEST(DatasetInfo, ComesBackAsItWas) {
  const TempDir directory;
  EXPECT_EQ(read_dataset_info(directory / "d"), std::nullopt);
  const DatasetInfo info = {"bytes", "bytes", 257, 256, 1, INT64_MAX, 0, "0123"};
  write_text(directory / "d.json", to_json(info));
  EXPECT_EQ(read_dataset_info(directory / "d"), info);
}

TEST(DatasetInfo, NamesTheKeyThatIsWrong) {
  const TempDir directory;
  const std::string good = to_json({"bytes", "bytes", 257, 256, 1, 2, 3, "0123"});
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    bytes.replace(bytes.find(from), from.size(), to);
    write_text(directory / "d.json", bytes);
    return message_of<DataError>([&] { read_dataset_info(directory / "d"); });
  };
  EXPECT_TRUE(contains(message("{", "["), "d.json: not valid JSON"));
  EXPECT_TRUE(
      contains(message("\"version\": 1", "\"version\": 2"), "version: found 2, expected an integer from 1 to 1"));
  EXPECT_TRUE(
      contains(message("\"tokenizer\": \"bytes\"", "\"tokenizer\": \"x\""), "tokenizer: found \"x\", expected"));
  EXPECT_TRUE(
      contains(message("\"tokenizer\": \"bytes\"", "\"tokenizer\": 1"), "tokenizer: found 1, expected a string"));
  EXPECT_TRUE(contains(message("257", "0"), "vocab_size: found 0, expected an integer from 1"));
  EXPECT_TRUE(contains(message("257", "18446744073709551615"), "vocab_size: found 18446744073709551615"));
  EXPECT_TRUE(contains(message("257", "256.5"), "vocab_size: found 256.5"));
  EXPECT_TRUE(contains(message("256", "257"), "eod: found 257, expected an integer from 0 to 256"));
  EXPECT_TRUE(contains(message("256", "-1"), "eod: found -1"));
  EXPECT_TRUE(contains(message("\"tokens\"", "\"token\""), "tokens: found nothing"));
  write_text(directory / "d.json", std::string(2 << 20, ' '));
  EXPECT_TRUE(contains(message_of<DataError>([&] { read_dataset_info(directory / "d"); }), "expected at most 1048576"));
}

TEST(DatasetInfo, HasToAgreeWithTheDataset) {
  const TempDir directory;
  write_dataset(directory / "d", {{1, 2, 3}, {4, 5}});
  const IndexedDataset dataset(directory / "d");
  check_written_together({"bytes", "bytes", 257, 256, 2, 5, 3, ""}, dataset);
  EXPECT_TRUE(contains(message_of<DataError>([&] {
                         check_written_together({"bytes", "bytes", 257, 256, 2, 6, 3, ""}, dataset);
                       }),
                       "counts 2 documents and 6 tokens, but"));
  EXPECT_THROW(check_written_together({"bytes", "bytes", 257, 256, 1, 5, 3, ""}, dataset), DataError);
}

}  // namespace
}  // namespace trivet
