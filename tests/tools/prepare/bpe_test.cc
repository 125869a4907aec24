// Byte-level BPE against `tokenizers` (tests/golden/make_bpe_golden.py) and against itself.
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/content_hash.h"
#include "base/files.h"
#include "engine/data/bpe_tokenizer.h"
#include "engine/data/training_data.h"
#include "tests/engine/data/support.h"
#include "tests/support/where.h"
#include "tools/prepare/bpe_trainer.h"
#include "tools/prepare/prepare.h"

namespace trivet {
namespace {

using nlohmann::json;

std::string golden(const std::string& file) {
  return read_small_file(source_path("tests/golden/bpe/" + file), 16 << 20);
}

BpeEnds ends_of(const std::string& name) { return {name == "llama3" ? "<|end_of_text|>" : "<|endoftext|>", ""}; }

std::unique_ptr<Tokenizer> golden_tokenizer(const std::string& name, bool special_as_text = false) {
  const std::string file = golden(name + ".json");
  return make_bpe(parse_bpe_model(file, name), ends_of(name), special_as_text);
}

const std::vector<std::string> kNames = {"gpt2", "llama3", "qwen2"};
BpePattern pattern_of(const std::string& name) { return parse_word<BpePattern>(name).value(); }

// A text of hard cases for tokenizers; if `broken`, with bytes that are not UTF-8.
std::string hard_text(uint64_t seed, int parts, bool broken) {
  static const std::vector<std::string> kParts = {"a",
                                                  "bc",
                                                  "abab",
                                                  " ",
                                                  "  ",
                                                  "\n",
                                                  "\r\n",
                                                  "\t",
                                                  "'",
                                                  "'s",
                                                  "'LL",
                                                  "1",
                                                  "23",
                                                  "!",
                                                  "--",
                                                  "\u00e9",
                                                  "e\u0301",
                                                  "\u0301",
                                                  "\u017f",
                                                  "\u00a0",
                                                  "\u3000",
                                                  "\u4eba",
                                                  "\U0001f600",
                                                  "\U0001d7d8",
                                                  "<|endoftext|>",
                                                  "<|end_of_text|>",
                                                  "<|end",
                                                  "<|",
                                                  "of_text|>",
                                                  "spe cial",
                                                  "tokwort",
                                                  std::string(1, '\0'),
                                                  "<|im_start|>user",
                                                  "word",
                                                  " the",
                                                  "<tool call>"};
  static const std::vector<std::string> kBroken = {"\xff",     "\xc3",         "\x80\x80\x80\x80\x80",
                                                   "\xe4\xba", "\xf0\x9f\x98", "\xed\xa0\x80"};
  std::mt19937_64 random(seed);
  std::string text;
  while (parts-- > 0)
    text += broken && random() % 8 == 0 ? kBroken[random() % kBroken.size()] : kParts[random() % kParts.size()];
  return text;
}

// Encodes texts in parts, as when read from a file; a part that cannot be cut grows. Returns the number of cuts.
int compare_parts(const Tokenizer& tokenizer, uint64_t texts) {
  int cuts = 0;
  for (uint64_t seed = 0; seed < texts; ++seed) {
    const std::string whole = hard_text(seed, 80, seed % 2 == 0);
    std::vector<int32_t> tokens;
    for (std::string_view rest = whole; !rest.empty();) {
      size_t size = 0;
      for (size_t most = 4 + seed % 30; size == 0; most *= 2)
        size = tokenizer.part_size(rest.substr(0, most + 1 + seed % 7), most);
      cuts += size < rest.size();
      const auto part = tokenizer.encode(rest.substr(0, size), rest.size() < whole.size());
      tokens.insert(tokens.end(), part.begin(), part.end());
      rest.remove_prefix(size);
    }
    EXPECT_EQ(tokens, tokenizer.encode(whole)) << "seed " << seed;
  }
  return cuts;
}

TEST(Bpe, GivesTheTokensOfTokenizers) {
  const json expected = json::parse(golden("ids.json"));
  for (const std::string& name : kNames)
    for (const bool as_text : {false, true}) {
      const auto tokenizer = golden_tokenizer(name, as_text);
      const json& ids = expected["ids"][name + (as_text ? " special as text" : "")];
      ASSERT_EQ(ids.size(), expected["texts"].size());
      for (size_t i = 0; i < ids.size(); ++i) {
        const std::string text = expected["texts"][i];
        EXPECT_EQ(tokenizer->encode(text), ids[i].get<std::vector<int32_t>>()) << name << as_text << ": " << text;
        EXPECT_EQ(tokenizer->encode(text), ids[i].get<std::vector<int32_t>>()) << "from the cache";
      }
    }
}

// Sections from other models' files, with a vocabulary whose tokens span any boundary between pieces.
struct ShapesTest : testing::Test {
  const json shapes = json::parse(golden("shapes.json"));
  const json hard = json::parse(golden("ids.json"))["texts"];

  std::string file(const json& shape) const {
    json whole = shapes["base"];
    whole.update(shape["file"]);
    if (shape["name"] == "GPT-2") whole["model"].erase("type");
    return whole.dump();
  }
  std::unique_ptr<Tokenizer> tokenizer(const json& shape) const {
    return make_bpe(parse_bpe_model(file(shape), shape["name"]), ends_of("gpt2"), false);
  }
};

TEST_F(ShapesTest, GivesTheTokensOfTokenizers) {
  std::vector<std::string> texts = hard;
  for (const json& text : shapes["texts"]) texts.push_back(text);
  for (const json& shape : shapes["shapes"]) {
    const auto one = tokenizer(shape);
    ASSERT_EQ(shape["ids"].size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      uint32_t hash = 0;
      for (const int32_t token : one->encode(texts[i])) hash = hash * 31 + static_cast<uint32_t>(token);
      EXPECT_EQ(hash, shape["ids"][i]) << shape["name"] << ": " << texts[i].substr(0, 200);
    }
  }
}

TEST_F(ShapesTest, AreReadAsTheyAreWritten) {
  for (const json& shape : shapes["shapes"]) {
    const BpeModel model = parse_bpe_model(file(shape), "f"),
                   again = parse_bpe_model(to_tokenizer_json(model), "again");
    EXPECT_EQ(again.splits, model.splits) << shape["name"];
    EXPECT_EQ(again.tokens, model.tokens);
    EXPECT_EQ(again.nfc, model.nfc);
  }
}

TEST_F(ShapesTest, PartsHaveTheTokensOfTheWhole) {
  for (const json& shape : shapes["shapes"]) {
    const int cuts = compare_parts(*tokenizer(shape), 150);
    EXPECT_GT(cuts, shape["name"] == "look-ahead" ? 20 : 150) << shape["name"];
  }
}

TEST(Bpe, GivesTheTokensOfTokenizersForLongRuns) {
  const json expected = json::parse(golden("ids.json"));
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  // Every second one: each kind of run with one tokenizer or two.
  const auto runs = expected["long"].get<std::vector<json>>();
  for (size_t n = 0; n < runs.size(); n += 2) {
    const json& run = runs[n];
    std::string text;
    for (int i = 0; i < run["count"]; ++i) text += run["unit"].get_ref<const std::string&>();
    text += run["end"].get_ref<const std::string&>();
    uint64_t hash = 0;
    std::unique_ptr<Tokenizer>& tokenizer = tokenizers[run["tokenizer"]];
    if (!tokenizer) tokenizer = golden_tokenizer(run["tokenizer"]);
    const auto tokens = tokenizer->encode(text);
    for (const int32_t token : tokens) hash = hash * 31 + static_cast<uint64_t>(token);
    EXPECT_EQ(tokens.size(), run["tokens"]) << run;
    EXPECT_EQ(hash, run["hash"]) << run;
  }
}

// Token names must be equal too: readers of the file would take other names for other tokens.
TEST(Bpe, TrainsTheMergesOfTokenizers) {
  const std::string corpus = golden("corpus.txt");
  for (const std::string& name : kNames) {
    const BpeModel expected = parse_bpe_model(golden(name + ".json"), name);
    std::vector<std::string> special;
    for (const auto& token : expected.added)
      if (token.special) special.push_back(token.text);
    PieceCounts counts;
    count_pieces(BpeCutter(expected.splits), corpus, counts);
    BpeModel found = train_bpe(counts, std::ssize(expected.vocab), pattern_of(name), special);
    EXPECT_EQ(found.merges, expected.merges) << name;
    EXPECT_EQ(found.vocab, expected.vocab) << name;
    // and the written file reads back
    const BpeModel again = parse_bpe_model(to_tokenizer_json(found), name);
    EXPECT_EQ(again.merges, found.merges);
    EXPECT_EQ(again.tokens, found.tokens);
    EXPECT_EQ(again.splits, expected.splits);
    EXPECT_EQ(again.added.size(), special.size());
  }
}

TEST(Bpe, TrainsUntilNoPairIsLeft) {
  const BpeModel model = train_bpe({{"aaaa", 2}, {"b", 5}}, 1000, BpePattern::gpt2, {"<|endoftext|>"});
  EXPECT_EQ(model.tokens.size(), 259u);  // aa and aaaa
  EXPECT_EQ(model.tokens[258], "aaaa");
}

TEST(Bpe, GivesAnyBytesBack) {
  for (const std::string name : {"gpt2", "llama3"}) {
    const auto tokenizer = golden_tokenizer(name);
    for (uint64_t seed = 0; seed < 300; ++seed) {
      std::string text = hard_text(seed, 60, true);
      const std::string end = ends_of(name).eod;  // encodes to its token, not as text
      for (size_t at; (at = text.find(end)) != text.npos;) text.erase(at, end.size());
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << name << ", seed " << seed;
    }
  }
}

TEST(Bpe, PartsHaveTheTokensOfTheWhole) {
  for (const std::string& name : kNames) EXPECT_GT(compare_parts(*golden_tokenizer(name), 400), 1000) << name;
}

// A non-special token inside which a text could otherwise be cut.
TEST(Bpe, PartsDoNotCutAnAddedToken) {
  for (const std::string& name : kNames) {
    json file = json::parse(golden(name + ".json"));
    file["added_tokens"].push_back({{"id", parse_bpe_model(golden(name + ".json"), name).tokens.size()},
                                    {"content", "<tool call>"},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", true},
                                    {"special", false}});
    EXPECT_GT(compare_parts(*make_bpe(parse_bpe_model(file.dump(), name), ends_of(name), false), 200), 500) << name;
  }
}

// A text that offers no place to cut is cut anyway, so that a long word takes no more memory than other text.
TEST(Bpe, CutsAnyTextSomewhere) {
  constexpr size_t kMost = kMostUncutBytes;
  for (const std::string& name : kNames)
    for (const std::string unit : {"a", " ", "\u4eba", "\u0301", "\x80", "\n"}) {
      std::string text;
      while (text.size() < kMost + 1000) text += unit;
      const auto tokenizer = golden_tokenizer(name);
      EXPECT_EQ(tokenizer->part_size(text, kMost / 2), 0u) << name << unit;
      const size_t size = tokenizer->part_size(text, kMost);
      EXPECT_LE(size, kMost);
      EXPECT_GT(size, kMost - 5000);
      EXPECT_EQ(size % unit.size(), 0u) << "within a character";
    }
  const std::string token = "<|end_of_text|>";
  std::string text;
  while (text.size() < kMost + 1000) text += token;
  EXPECT_EQ(golden_tokenizer("llama3")->part_size(text, kMost) % token.size(), 0u) << "within an added token";
}

// utf8proc sorts marks by swapping neighbours, which takes minutes for hundreds of thousands of them.
TEST(Bpe, NormalisesManyMarks) {
  const auto many = [](const std::string& mark) {
    std::string text;
    for (int i = 0; i < 150'000; ++i) text += mark;
    return text;
  };
  const auto tokenizer = golden_tokenizer("qwen2");
  EXPECT_EQ(tokenizer->encode("a" + many("\u0301\u0316") + "b"),
            tokenizer->encode("\u00e1" + many("\u0316") + many("\u0301").substr(2) + "b"));
}

TEST(Bpe, CanBeUsedByManyThreads) {
  const auto one = golden_tokenizer("gpt2"), other = golden_tokenizer("llama3");
  const auto text = [](uint64_t seed) { return hard_text(seed, 2000, true); };
  std::vector<std::vector<int32_t>> expected;
  for (uint64_t seed = 0; seed < 8; ++seed) expected.push_back((seed % 2 == 0 ? one : other)->encode(text(seed)));
  std::vector<std::jthread> threads;
  std::atomic<int> different = 0;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] {
      for (uint64_t seed = 0; seed < 8; ++seed)
        different += (seed % 2 == 0 ? one : other)->encode(text(seed)) != expected[seed];
    });
  threads.clear();
  EXPECT_EQ(different, 0);
}

TEST(Bpe, RemembersNoTokensOfOtherWordsWhenItsCacheIsFull) {
  const auto tokenizer = golden_tokenizer("gpt2");
  const auto words = [](int first, int count) {
    std::string text;
    for (int i = first; i < first + count; ++i) {
      for (int digit = i, left = 4; left > 0; --left, digit /= 26) text += static_cast<char>('a' + digit % 26);
      text += ' ';
    }
    return text;
  };
  const int most = 1 << 18, few = 100;  // a thread's cache holds `most` words
  const std::vector<int32_t> tokens = tokenizer->encode(words(0, few));
  tokenizer->encode(words(few, most));
  EXPECT_EQ(tokenizer->encode(words(0, few)), tokens);
}

TEST(Bpe, ReadsVocabAndMerges) {
  const BpeModel model = parse_bpe_model(golden("gpt2.json"), "gpt2");
  const TempDir directory;
  const auto name = [&](int32_t id) { return model.tokens[static_cast<size_t>(id)]; };
  // A merge that appears twice takes its last rank.
  std::string merges = "#version: 0.2\n" + name(model.merges[20][0]) + " " + name(model.merges[20][1]) + "\r\n";
  for (const auto& merge : model.merges) merges += name(merge[0]) + " " + name(merge[1]) + "\n";
  write_text(directory / "x-vocab.json", json(model.vocab).dump());
  write_text(directory / "x-merges.txt", merges);
  const BpeModel read = read_bpe_vocab(directory / "x-vocab.json", {"<|endoftext|>", ""});
  const auto one = make_bpe(read, ends_of("gpt2"), false), other = golden_tokenizer("gpt2");
  for (uint64_t seed = 0; seed < 50; ++seed)
    EXPECT_EQ(one->encode(hard_text(seed, 50, true)), other->encode(hard_text(seed, 50, true)));
  write_text(directory / "x-merges.txt", "#version: 0.2\nt h\n# comment\n");
  EXPECT_EQ(message_of<DataError>([&] { read_bpe_vocab(directory / "x-vocab.json", {}); }),
            directory / "x-merges.txt: merges: found \"# comment\" in place 2, expected a vocabulary with \"comment\"");
}

TEST(Bpe, NamesWhatItDoesNotImplement) {
  const json good =
      json::parse(to_tokenizer_json(train_bpe({{"abab", 1}}, 258, BpePattern::llama3, {"<|endoftext|>"})));
  const auto message = [&](auto change) {
    json file = good;
    change(file);
    return message_of<DataError>([&] { parse_bpe_model(file.dump(), "f"); });
  };
  parse_bpe_model(good.dump(), "f");
  const struct {
    std::string place;
    json value;
    std::string expected;
  } rows[] = {
      {"/normalizer", {{"type", "NFKC"}}, "f: normalizer: type: found \"NFKC\", expected \"NFC\": nothing else"},
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}}, "type: found \"Lowercase\""},
      {"/decoder", {{"type", "Metaspace"}}, "f: decoder: type: found \"Metaspace\""},
      {"/pre_tokenizer", nullptr, "f: pre_tokenizer: found null, expected ByteLevel, or a Sequence that ends with it"},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, "f: pre_tokenizer: type: found \"Metaspace\", expected \"Split\" or"},
      {"/pre_tokenizer", {{"type", "ByteLevel"}}, "f: pre_tokenizer: add_prefix_space: found nothing"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+", "pattern: found an escape, not implemented, in"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"x", 1}}, "pattern: String: found nothing"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Contiguous", "f: pre_tokenizer: behavior: found \"Contiguous\""},
      {"/pre_tokenizer/pretokenizers/1", {{"type", "Digits"}, {"individual_digits", true}}, "that ends with it"},
      {"/pre_tokenizer/pretokenizers/2", {{"type", "ByteLevel"}}, "found \"ByteLevel\", expected nothing after"},
      {"/model/type", "Unigram", "f: model: type: found \"Unigram\", expected \"BPE\""},
      {"/model/dropout", 0.1, "f: model: dropout: found 0.1"},
      {"/model/end_of_word_suffix", "</w>", "f: model: end_of_word_suffix: found \"</w>\""},
      {"/model/vocab/a", 5, "f: model: vocab: found \""},
      {"/model/vocab/a", 100000, "f: model: vocab: found \"a\" with id 100000, expected the ids of 258 tokens from 0"},
      {"/model/vocab/a", -1, "f: model: vocab: a: found -1, expected an integer from 0"},
      {"/model/vocab/a", "x", "f: model: vocab: a: found \"x\", expected an integer"},
      {"/model/merges/0", "a z", "found \"a z\" in place 1, expected a vocabulary with \"az\""},
      {"/model/merges/0", "ab", "found \"ab\" in place 1, expected two tokens with a space between"},
      {"/model/merges/0", 7, "f: model: merges: found 7, expected \"a b\" or"},
      {"/added_tokens/0/lstrip", true, "f: added_tokens: lstrip: found true, expected false: nothing else"},
      {"/added_tokens/0/single_word", true, "single_word: found true"},
      {"/added_tokens/0/content", "", "f: added_tokens: content: found \"\""},
      {"/added_tokens/0/id", 5, "added_tokens: found \"<|endoftext|>\" with id 5, expected 0"},
      {"/added_tokens/0/special", 5, "f: added_tokens: special: found 5"},
  };
  for (const auto& row : rows)
    EXPECT_TRUE(contains(message([&](json& file) { file[json::json_pointer(row.place)] = row.value; }), row.expected))
        << row.place;
  EXPECT_TRUE(contains(message([](json& file) {
                         json& vocab = file["model"]["vocab"];
                         vocab["new"] = vocab["!"];
                         vocab.erase("!");
                       }),
                       "found no \"!\" for the byte 0x21, expected a token for each byte"));
  EXPECT_TRUE(contains(message_of<DataError>([] { parse_bpe_model("{", "f"); }), "f: not valid JSON"));
}

TEST(Bpe, NeedsItsEndOfDocument) {
  const TempDir directory;
  write_text(directory / "tokenizer.json", golden("gpt2.json"));
  EXPECT_TRUE(contains(message_of<DataError>([&] { load_tokenizer(directory / "tokenizer.json"); }),
                       "names no end of document; expected tokenizer_config.json next to it"));
  const std::string config = directory / "tokenizer_config.json";
  write_text(config, R"({"eos_token": {"content": "<|endoftext|>"}, "bos_token": "<|endoftext|>"})");
  const auto tokenizer = load_tokenizer(directory / "tokenizer.json");
  EXPECT_EQ(tokenizer->eod(), 0);
  EXPECT_EQ(tokenizer->bos(), -1);
  EXPECT_EQ(tokenizer->encode_prompt(""), std::vector<int32_t>{0});
  write_text(config, to_tokenizer_config({"<|endoftext|>", "<|endoftext|>"}));
  EXPECT_EQ(load_tokenizer(directory / "tokenizer.json")->encode_prompt("<|endoftext|>"), (std::vector<int32_t>{0, 0}));
  write_text(config, R"({"eos_token": "</s>"})");
  EXPECT_EQ(
      message_of<ConfigError>([&] { load_tokenizer(directory / "tokenizer.json"); }),
      config + ": eos_token: found \"</s>\", which is not a special token of the tokenizer: it has <|endoftext|>");
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{900}), DataError);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), DataError);
}

// The post-processor of Llama 3, as `tokenizers` 0.23 writes it for the golden tokenizer.
const std::string kTemplate =
    R"({"type":"TemplateProcessing",
        "single":[{"SpecialToken":{"id":"<|begin_of_text|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
        "pair":[{"SpecialToken":{"id":"<|begin_of_text|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},
                {"SpecialToken":{"id":"<|begin_of_text|>","type_id":1}},{"Sequence":{"id":"B","type_id":1}}],
        "special_tokens":{"<|begin_of_text|>":{"id":"<|begin_of_text|>","ids":[0],"tokens":["<|begin_of_text|>"]}}})";
const std::string kByteLevel = R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true})";

std::string golden_with(const std::string& post_processor) {
  json file = json::parse(golden("llama3.json"));
  file["post_processor"] = json::parse(post_processor);
  return file.dump();
}

TEST(Bpe, ReadsTheTokenThatBeginsTexts) {
  const auto begin = [](const std::string& post_processor) {
    return parse_bpe_model(golden_with(post_processor), "f").begin;
  };
  const std::string both = R"({"type":"Sequence","processors":[)" + kByteLevel + "," + kTemplate + "]}";
  EXPECT_EQ(begin(kTemplate), "<|begin_of_text|>");
  EXPECT_EQ(begin(both), "<|begin_of_text|>");
  EXPECT_EQ(begin(kByteLevel), "");
  EXPECT_EQ(begin(R"({"type":"Sequence","processors":[]})"), "");
  json bare = json::parse(kTemplate);
  bare["single"].erase(0);
  EXPECT_EQ(begin(bare.dump()), "");
  // anything else that would change ids, and malformed input
  for (const auto& [place, value] : std::vector<std::pair<std::string, json>>{
           {"/single/2", {{"SpecialToken", {{"id", "<|end_of_text|>"}, {"type_id", 0}}}}},
           {"/single/1/Sequence/id", "B"},
           {"/single/0/SpecialToken/id", "<|end_of_text|>"},
           {"/single/0/SpecialToken/id", "wort"},
           {"/single", 5},
           {"/special_tokens/<|begin_of_text|>/ids/0", 7},
           {"/special_tokens/<|begin_of_text|>/ids/1", 0},
           {"/special_tokens", nullptr},
           {"/type", "RobertaProcessing"},
           {"/type", "Sequence"},
           {"/processors", 5}}) {
    json changed = json::parse(kTemplate);
    changed[json::json_pointer(place)] = value;
    if (place == "/processors") changed["type"] = "Sequence";
    EXPECT_TRUE(
        contains(message_of<DataError>([&] { begin(changed.dump()); }), "f: post_processor: found {\"pair\":[{\"Sp"))
        << place << value;
  }
  EXPECT_THROW(begin("[" + kTemplate + "]"), DataError);
  EXPECT_THROW(begin(R"({"type":"Sequence","processors":[)" + kTemplate + "," + kTemplate + "]}"), DataError);
}

TEST(Bpe, WritesTheTokenThatBeginsTexts) {
  BpeModel model = parse_bpe_model(golden("llama3.json"), "f");
  model.begin = "<|begin_of_text|>";
  for (const std::string& file : {to_tokenizer_json(model), with_begin(golden("llama3.json"), model)}) {
    EXPECT_EQ(json::parse(file)["post_processor"], json::parse(kTemplate));
    EXPECT_EQ(parse_bpe_model(file, "f").begin, model.begin);
  }
  model.begin.clear();
  EXPECT_EQ(json::parse(with_begin(golden_with(kTemplate), model)), json::parse(golden("llama3.json")));
}

class BpePrepareTest : public testing::Test {
 protected:
  BpePrepareTest() {
    write_text(directory_ / "in.txt", golden("corpus.txt"));
    options_.inputs = {directory_ / "in.txt"};
    options_.output = directory_ / "d";
    options_.tokenizer = "bpe";
  }

  void use_model(const std::string& name) {
    write_text(directory_ / (name + "-tokenizer.json"), golden(name + ".json"));
    options_.model = directory_ / (name + "-tokenizer.json");
    options_.eod_token = ends_of(name).eod;
  }

  // The tokens of the dataset's first document.
  std::vector<int32_t> first_document() const {
    const IndexedDataset dataset(options_.output);
    std::vector<int32_t> tokens(static_cast<size_t>(dataset.length(0)));
    dataset.read(0, tokens);
    return tokens;
  }

  std::string message() const {
    return message_of<ConfigError>([&] { prepare_dataset(options_); });
  }

  TempDir directory_;
  PrepareOptions options_;
};

TEST_F(BpePrepareTest, TakesAModel) {
  use_model("llama3");
  write_text(directory_ / "in.txt", "x<|begin_of_text|>y tokwort\xff");
  options_.bos_token = "<|begin_of_text|>";
  PrepareResult result = prepare_dataset(options_);
  const auto tokenizer = open_tokenizer(options_.output);
  std::vector<int32_t> expected = tokenizer->encode_prompt("x<|begin_of_text|>y tokwort\xff");
  EXPECT_EQ(expected[0], tokenizer->bos());
  expected.push_back(tokenizer->eod());
  EXPECT_EQ(first_document(), expected);
  EXPECT_EQ(result.done.added_tokens, 2);
  EXPECT_EQ(result.done.replaced_bytes, 0);
  EXPECT_EQ(result.info.bos, 0);
  EXPECT_EQ(read_dataset_info(options_.output), result.info);
  EXPECT_EQ(json::parse(read_text(options_.output + ".tokenizer.json")), json::parse(golden_with(kTemplate)));
  EXPECT_EQ(tokenizer->decode(expected), "xy tokwort\xff");
  options_.special_as_text = options_.force = true;
  result = prepare_dataset(options_);
  EXPECT_EQ(result.done.added_tokens, 1);  // tokwor, which is not special
  EXPECT_GT(first_document().size(), expected.size() + 5);
  // A tokenizer whose beginning-of-document token differs from the dataset's.
  write_text(options_.output + ".tokenizer.json", golden("llama3.json"));
  write_text(options_.output + ".tokenizer_config.json", to_tokenizer_config({"<|end_of_text|>", ""}));
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { open_tokenizer(options_.output); }), "end of document 1, beginning -1"));
}

TEST_F(BpePrepareTest, ATemplateAndTheOptionAgree) {
  use_model("llama3");
  write_text(options_.model, golden_with(kTemplate));
  for (const std::string other : {"", "<|end_of_text|>"}) {
    options_.bos_token = other;
    EXPECT_EQ(message(), options_.model +
                             ": its post_processor puts <|begin_of_text|> in front of every text, and --bos-token is " +
                             (other.empty() ? "not given" : other) +
                             "; expected --bos-token <|begin_of_text|>, which begins every document with it too, or "
                             "none, which removes it from the tokenizer.json that is written");
  }
  EXPECT_EQ(names_in(directory_ / ""), (std::vector<std::string>{"in.txt", "llama3-tokenizer.json"}));
  // The same token: the file is unchanged.
  options_.bos_token = "<|begin_of_text|>";
  prepare_dataset(options_);
  EXPECT_EQ(read_text(options_.output + ".tokenizer.json"), read_text(options_.model));
  EXPECT_EQ(first_document()[0], 0);
  EXPECT_EQ(open_tokenizer(options_.output)->bos(), 0);
  // No token: neither the dataset nor the file contains one.
  options_.bos_token = "none";
  options_.force = true;
  EXPECT_EQ(prepare_dataset(options_).info.bos, -1);
  EXPECT_NE(first_document()[0], 0);
  EXPECT_EQ(json::parse(read_text(options_.output + ".tokenizer.json")), json::parse(golden("llama3.json")));
}

// Options that change the output: a call that continued after another's documents would mix two datasets.
TEST_F(BpePrepareTest, DoesNotGoOnWithAnotherOption) {
  use_model("llama3");
  write_text(options_.model, golden_with(kTemplate));
  std::string lines;
  for (const std::string& sentence : made_up_sentences(200, 12))
    lines += json{{"text", sentence}, {"other", sentence}}.dump() + "\n";
  const std::string input = directory_ / "in.jsonl";
  write_text(input, lines);
  options_.inputs = {input};
  options_.bos_token = "<|begin_of_text|>";
  options_.part_bytes = 1;
  options_.force = true;
  const auto as_now = std::filesystem::last_write_time(input);
  const std::vector<std::pair<const char*, std::function<void()>>> changes = {
      {"--bos-token", [&] { options_.bos_token = "none"; }},
      {"--special-as-text", [&] { options_.special_as_text = true; }},
      {"--no-append-eod", [&] { options_.append_eod = false; }},
      {"--json-key", [&] { options_.text.json_key = "other"; }},
      {"time of the file", [&] { std::filesystem::last_write_time(input, as_now + std::chrono::seconds(1)); }}};
  const PrepareOptions usual = options_;
  for (const auto& [name, change] : changes) {
    options_ = usual;
    EXPECT_THROW(prepare_dataset(options_,
                                 [](const PrepareProgress& p) {
                                   if (p.tokens > 0) throw std::runtime_error("stop");
                                 }),
                 std::runtime_error);
    ASSERT_TRUE(std::filesystem::exists(directory_ / "d.partial.json")) << name;
    change();
    EXPECT_EQ(prepare_dataset(options_).earlier.documents, 0) << name;
  }
}

// The ids of texts are the same with and without the template, so either model accepts the other's data.
TEST_F(BpePrepareTest, ATemplateDoesNotChangeTheFingerprint) {
  use_model("llama3");
  write_text(options_.model, golden_with(kTemplate));
  write_text(tokenizer_config_of(options_.model), to_tokenizer_config(ends_of("llama3")));
  const std::string fingerprint = load_tokenizer(options_.model)->fingerprint();
  DataConfig config;
  config.path = options_.output;
  options_.force = true;
  for (const char* bos : {"<|begin_of_text|>", "none"}) {
    options_.bos_token = bos;
    EXPECT_EQ(prepare_dataset(options_).info.fingerprint, fingerprint) << bos;
    EXPECT_EQ(open_tokenizer(options_.output)->fingerprint(), fingerprint) << bos;
    open_data(config, 32, 900, false);  // verifies that the dataset was encoded with the file next to it
  }
  write_text(options_.model, golden("llama3.json"));
  EXPECT_EQ(load_tokenizer(options_.model)->fingerprint(), fingerprint);
}

// The file as transformers saves it after loading: different bytes, the same ids.
json saved_again(json file) {
  json merges = json::array();
  for (const json& pair : file["model"]["merges"])
    merges.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
  file["model"]["merges"] = merges;
  file["model"].erase("type");
  file["padding"] = {{"pad_id", 3}};
  std::ranges::reverse(file["added_tokens"].get_ref<json::array_t&>());
  file["pre_tokenizer"]["pretokenizers"][0].update({{"behavior", "Removed"}, {"invert", true}});
  return file;
}

TEST(Bpe, TheFingerprintIsOfWhatEncodes) {
  const json file = json::parse(golden("llama3.json"));
  const auto model = [](const json& changed) { return parse_bpe_model(changed.dump(), "f"); };
  const std::string own = bpe_fingerprint(model(file));
  json again = saved_again(file);
  std::ranges::reverse(again["added_tokens"].get_ref<json::array_t&>());  // tokens with new ids must be in order
  EXPECT_EQ(bpe_fingerprint(model(again)), own);
  const struct {
    std::function<void(json&)> change;
    std::string difference;
  } rows[] = {
      {[](json& f) { std::swap(f["model"]["vocab"]["a"], f["model"]["vocab"]["b"]); },
       ": they differ in tokens, merges"},
      {[](json& f) { std::swap(f["model"]["merges"][5], f["model"]["merges"][6]); }, ": they differ in merges"},
      {[](json& f) { f["model"]["merges"].erase(600); }, ": they differ in merges"},
      {[](json& f) { f["model"]["ignore_merges"] = false; },
       ": they differ in rules for splitting and normalising text"},
      {[](json& f) {
         f["normalizer"] = {{"type", "NFC"}};
       },
       ": they differ in rules"},
      {[](json& f) { f["added_tokens"][0]["normalized"] = true; }, ": they differ in rules"},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\S+"; }, ": they differ in rules"},
  };
  for (const auto& [change, difference] : rows) {
    json other = file;
    change(other);
    EXPECT_NE(bpe_fingerprint(model(other)), own) << difference;
    const std::string found = bpe_difference(own, bpe_fingerprint(model(other)));
    EXPECT_TRUE(found.starts_with(difference)) << found << ", expected " << difference;
  }
  EXPECT_EQ(bpe_difference(own, content_hash("x")), "");
}

TEST_F(BpePrepareTest, DatasetsOfOneTokenizerAreOfOneVocabulary) {
  const auto make = [&](const std::string& output, const std::string& file) {
    write_text(directory_ / "m-tokenizer.json", file);
    use_model("llama3");
    options_.model = directory_ / "m-tokenizer.json";
    options_.output = directory_ / output;
    prepare_dataset(options_);
    EXPECT_EQ(json::parse(read_text(options_.output + ".json"))["tokenizer_xxh3_128"], content_hash(file));
    return options_.output;
  };
  json again = saved_again(json::parse(golden("llama3.json")));
  std::ranges::reverse(again["added_tokens"].get_ref<json::array_t&>());
  const std::string one = make("one", golden("llama3.json")), other = make("other", again.dump());
  DataConfig config;
  config.path = one + "," + other;
  open_data(config, 32, 902, false);
  // The message names a different tokenizer, and the difference.
  again["model"]["ignore_merges"] = false;
  config.path = one + "," + make("another", again.dump());
  const std::string message = message_of<DataError>([&] { data_vocabulary(config); });
  EXPECT_TRUE(contains(message, "different tokenizers: ")) << message;
  EXPECT_TRUE(contains(message, "another.json")) << message;
  EXPECT_TRUE(contains(message, "they differ in rules for splitting and normalising text")) << message;
}

TEST_F(BpePrepareTest, TheTemplateOfATrainedModelBeginsItsDocuments) {
  options_.vocab_size = 400;
  options_.bos_token = "<s>";
  prepare_dataset(options_);
  const json file = json::parse(read_text(options_.output + ".tokenizer.json"));
  const json& made = file["post_processor"]["special_tokens"]["<s>"];
  EXPECT_EQ(made["ids"], json::array({first_document()[0]}));
  EXPECT_EQ(open_tokenizer(options_.output)->bos(), first_document()[0]);
  DataConfig config;
  config.path = options_.output;
  EXPECT_TRUE(contains(open_data(config, 32, 400, false).sources.rows[0][1], ", token 1 begins each document"));
  options_.bos_token = "none";
  options_.output += "2";
  prepare_dataset(options_);
  EXPECT_FALSE(contains(read_text(options_.output + ".tokenizer.json"), "post_processor"));
}

// The members of tokenizer_config.json that Trivet does not know are transformers' own.
TEST_F(BpePrepareTest, NamesAndKeepsTheConfigurationBesideAModel) {
  write_text(directory_ / "tokenizer.json", golden("llama3.json"));
  options_.model = directory_ / "";
  EXPECT_TRUE(contains(message(), "needs --eod-token NAME, the special token that ends a document: the file does not"));
  const std::string config = directory_ / "tokenizer_config.json";
  write_text(config, R"({"eos_token": {"content": "<|end"}, "pad_token": "<|end", "chat_template": "{{x}}",
                         "tokenizer_class": "Qwen2Tokenizer"})");
  EXPECT_TRUE(contains(message(), "ends a document: " + config + " names eos_token <|end"));
  options_.eod_token = "<|end_of_text|>";
  prepare_dataset(options_);
  EXPECT_EQ(json::parse(read_text(options_.output + ".tokenizer_config.json")),
            json::parse(R"({"eos_token": "<|end_of_text|>", "pad_token": "<|end", "chat_template": "{{x}}",
                            "tokenizer_class": "Qwen2Tokenizer", "clean_up_tokenization_spaces": false,
                            "add_bos_token": false})"));
}

TEST_F(BpePrepareTest, IsTheTokenizerOfItsDataset) {
  use_model("gpt2");
  const std::string fingerprint = prepare_dataset(options_).info.fingerprint;
  DataConfig config;
  config.path = options_.output;
  EXPECT_EQ(data_vocabulary(config)->fingerprint, fingerprint);
  open_data(config, 32, 900, false);
  std::filesystem::remove(options_.output + ".json");
  EXPECT_EQ(data_vocabulary(config)->source, options_.output + ".tokenizer.json");
  EXPECT_EQ(data_vocabulary(config)->fingerprint, fingerprint);
  config.tokenizer_model = options_.output + ".tokenizer.json";
  EXPECT_EQ(data_vocabulary(config)->size, 900);
  EXPECT_EQ(open_tokenizer(options_.output)->fingerprint(), fingerprint);
  // A different tokenizer in its place.
  options_.force = true;
  prepare_dataset(options_);
  write_text(options_.output + ".tokenizer.json", golden("llama3.json"));
  EXPECT_TRUE(contains(message_of<DataError>([&] { open_data(config, 32, 900, false); }),
                       "d.tokenizer.json: not the tokenizer that the dataset was made with"));
}

TEST_F(BpePrepareTest, PiecesOfALongDocumentHaveTheTokensOfTheWhole) {
  use_model("llama3");
  // runs of one class around the size of a piece, special tokens, and bytes that are not UTF-8
  std::string text = golden("corpus.txt");
  for (const auto& [unit, count] : std::vector<std::pair<std::string, int>>{{"\u4eba", 360'000},
                                                                            {" ", 1'100'000},
                                                                            {"<|end_of_text|>", 75'000},
                                                                            {"\n", 1'100'000},
                                                                            {"\xff\xfe", 530'000}}) {
    for (int i = 0; i < count; ++i) text += unit;
    text += "it's 12345 \n\n  words";
  }
  write_text(directory_ / "in.txt", text);
  prepare_dataset(options_);
  std::vector<int32_t> expected = golden_tokenizer("llama3")->encode(text);
  expected.push_back(1);
  EXPECT_EQ(first_document(), expected);
}

TEST_F(BpePrepareTest, TrainsTheSameWithAnyNumberOfThreads) {
  for (int i = 0; i < 6; ++i) options_.inputs.push_back(options_.inputs[0]);
  options_.vocab_size = 600;
  options_.pattern = BpePattern::llama3;
  options_.special = {"<|user|>"};
  options_.threads = 1;
  prepare_dataset(options_);
  const std::string prefix = options_.output;
  const auto tokenizer = open_tokenizer(prefix);
  EXPECT_EQ(tokenizer->vocab_size(), 600);
  EXPECT_EQ(tokenizer->encode("<|endoftext|><|user|>"), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(names_in(directory_ / ""), (std::vector<std::string>{"d.bin", "d.idx", "d.json", "d.tokenizer.json",
                                                                 "d.tokenizer_config.json", "in.txt"}));
  const auto expect_the_same = [&] {
    prepare_dataset(options_);
    for (const char* suffix : {".bin", ".idx", ".json", ".tokenizer.json", ".tokenizer_config.json"})
      EXPECT_EQ(read_text(options_.output + suffix), read_text(prefix + suffix)) << options_.output << suffix;
  };
  options_.threads = 4;
  options_.output = directory_ / "again";
  expect_the_same();
  // and with its own model
  options_.output = directory_ / "model";
  options_.vocab_size.reset();
  options_.pattern.reset();
  options_.special.clear();
  options_.model = prefix + ".tokenizer.json";
  options_.eod_token = "<|endoftext|>";
  expect_the_same();
}

TEST_F(BpePrepareTest, TrainsOnASample) {
  options_.vocab_size = 300;
  options_.train_bytes = 1000;
  prepare_dataset(options_);
  EXPECT_EQ(open_tokenizer(options_.output)->decode(first_document()), [] {
    std::string text = golden("corpus.txt");
    return text.substr(0, text.size() - std::string("<|endoftext|>").size());  // which became the end of document
  }());
}

TEST_F(BpePrepareTest, RefusesOptionsThatWouldDoNothing) {
  EXPECT_TRUE(contains(message(), "--tokenizer bpe needs either --vocab-size N"));
  use_model("gpt2");
  options_.eod_token.clear();
  EXPECT_TRUE(contains(message(), "needs --eod-token NAME, the special token that ends a document"));
  options_.eod_token = "</s>";
  EXPECT_TRUE(contains(message(),
                       "--eod-token: found \"</s>\", which is not a special token of the tokenizer: it has <|endof"));
  options_.eod_token = "<|endoftext|>";
  options_.bos_token = "<s>";
  EXPECT_TRUE(contains(message(), "--bos-token: found \"<s>\""));
  options_.special = {"<x>"};
  EXPECT_TRUE(contains(message(), "--pattern and --special have no effect with --model"));
  options_.model.clear();
  options_.vocab_size = 258;
  EXPECT_TRUE(contains(message(), "--vocab-size is 258, expected 259 to"));
  options_.vocab_size = 100000;
  EXPECT_TRUE(contains(message(), "cannot train a BPE vocabulary of 100000 ids on this text: it suffices for "));
  options_.tokenizer = "bytes";
  options_.vocab_size.reset();
  EXPECT_TRUE(contains(message(), "--pattern and --special need --tokenizer bpe"));
}

}  // namespace
}  // namespace trivet
