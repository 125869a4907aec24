#include "engine/data/sentencepiece_tokenizer.h"

#include <algorithm>
#include <fmt/format.h>
#include <mutex>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "base/content_hash.h"
#include "base/files.h"
#include "base/piece.h"
#include "base/utf8.h"
#include "engine/data/sentencepiece_model.h"

namespace trivet {
namespace {

constexpr size_t kMaxTextBytes = 64 << 10;  // per call: the library needs many times this much memory
constexpr size_t kMaxCachedWord = 32;
constexpr size_t kMaxCachedWords = piece(1 << 18, 8);

// The library's message without its "src/file.cc(line) [condition] ", or the condition if there is no more.
std::string message_of_library(std::string_view message) {
  const size_t line = message.find(".cc("), end = message.rfind(']');
  if (line == message.npos || end == message.npos || end < line) return std::string(message);
  std::string_view text = message.substr(end + 1);
  if (text.find_first_not_of(" .") == text.npos) text = message.substr(message.find('[', line) + 1);
  return std::string(text.substr(std::min(text.find_first_not_of(' '), text.size())));
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& model, const std::string& name)
      : facts_(check_sentencepiece_model(model, name)), fingerprint_(content_hash(model)) {
    const auto status = processor_.LoadFromSerializedProto(model);
    if (!status.ok())
      throw DataError(
          fmt::format("{}: not a usable SentencePiece model: {}", name, message_of_library(status.message())));
    if (processor_.GetPieceSize() != facts_.pieces)
      throw DataError(
          fmt::format("{}: has {} pieces of which {} are usable", name, facts_.pieces, processor_.GetPieceSize()));
    if (processor_.eos_id() < 0)
      throw DataError(fmt::format("{}: has no end-of-sentence piece, which Trivet uses as end of document", name));
  }

  std::string kind() const override { return "sentencepiece"; }
  std::string fingerprint() const override { return fingerprint_; }
  int64_t vocab_size() const override { return facts_.pieces; }
  int32_t eod() const override { return processor_.eos_id(); }

  std::vector<int32_t> encode(std::string_view text, bool goes_on) const override {
    std::vector<int32_t> tokens;
    if (facts_.concatenates) {
      encode_words(text, tokens);
      return tokens;
    }
    if (goes_on && facts_.adds_space && text.starts_with(' ')) text.remove_prefix(1);
    while (!text.empty()) {
      const size_t size = part_size(text, kMaxTextBytes);
      encode_whole(text.substr(0, size), tokens);
      text.remove_prefix(size);
      // The library itself adds a space before the next part.
      if (facts_.adds_space && text.starts_with(' ')) text.remove_prefix(1);
    }
    return tokens;
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    for (const int32_t token : tokens) check_token(token);
    std::string text;
    const auto status = processor_.Decode(std::vector<int>(tokens.begin(), tokens.end()), &text);
    if (!status.ok())
      throw DataError(fmt::format("SentencePiece cannot decode: {}", message_of_library(status.message())));
    return text;
  }

  std::string piece(int32_t token) const override {
    check_token(token);
    return processor_.IdToPiece(token);
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
  };

  void check_token(int32_t token) const {
    if (token < 0 || token >= facts_.pieces)
      throw DataError(
          fmt::format("token id {} is not in the SentencePiece model, expected 0 to {}", token, facts_.pieces - 1));
  }

  void encode_whole(std::string_view text, std::vector<int32_t>& tokens) const {
    std::vector<int> ids;
    const auto status = processor_.Encode(text, &ids);
    if (!status.ok())
      throw DataError(fmt::format("SentencePiece cannot encode: {}", message_of_library(status.message())));
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }

  // A word: the prefix of `text` up to the first position that no piece spans.
  size_t word_size(std::string_view text) const {
    for (size_t i = 1; i < text.size(); ++i) {
      const auto a = static_cast<uint8_t>(text[i - 1]), b = static_cast<uint8_t>(text[i]);
      if (!facts_.joined[size_t{256} * a + b] && (b & 0xc0) != 0x80) return i;
    }
    return text.size();
  }

  // Encodes each new word once, which is many times faster than encoding the text as a whole and gives the same tokens
  // (SentencePieceFacts). New words enter the cache at the end of the text, so a text locks the cache only twice.
  void encode_words(std::string_view text, std::vector<int32_t>& tokens) const {
    std::vector<std::pair<std::string, std::vector<int32_t>>> fresh;
    {
      const std::shared_lock lock(mutex_);
      while (!text.empty()) {
        const std::string_view word = text.substr(0, part_size(text.substr(0, word_size(text)), kMaxTextBytes));
        text.remove_prefix(word.size());
        if (const auto known = cache_.find(word); known != cache_.end()) {
          tokens.insert(tokens.end(), known->second.begin(), known->second.end());
          continue;
        }
        const auto before = static_cast<std::ptrdiff_t>(tokens.size());
        encode_whole(word, tokens);
        if (word.size() <= kMaxCachedWord && cache_.size() + fresh.size() < kMaxCachedWords)
          fresh.emplace_back(word, std::vector<int32_t>(tokens.begin() + before, tokens.end()));
      }
    }
    if (fresh.empty()) return;
    const std::unique_lock lock(mutex_);
    for (auto& [word, ids] : fresh) cache_.try_emplace(std::move(word), std::move(ids));
  }

  SentencePieceFacts facts_;
  std::string fingerprint_;
  sentencepiece::SentencePieceProcessor processor_;
  mutable std::shared_mutex mutex_;
  mutable std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> cache_;  // guarded by mutex_
};

class Sentences final : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::vector<std::string>& all) : all_(all) {}
  bool done() const override { return next_ == all_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return all_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& all_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece(std::string model, const std::string& name) {
  return std::make_unique<SentencePieceTokenizer>(model, name);
}

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path) {
  return make_sentencepiece(read_small_file(path, kMaxSentencePieceBytes), path);
}

std::string train_sentencepiece(const std::vector<std::string>& sentences, int64_t vocab_size) {
  size_t longest = 4096;  // the library rejects a limit below 10 bytes
  for (const std::string& sentence : sentences) longest = std::max(longest, sentence.size());
  std::string model;
  Sentences iterator(sentences);
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {
          {"model_type", "bpe"},
          {"vocab_size", std::to_string(vocab_size)},
          {"byte_fallback", "true"},
          {"character_coverage", "0.9999"},
          {"normalization_rule_name", "identity"},
          {"add_dummy_prefix", "false"},
          {"remove_extra_whitespaces", "false"},
          {"allow_whitespace_only_pieces", "true"},
          {"unk_id", "0"},
          {"eos_id", "1"},
          {"bos_id", "-1"},
          {"pad_id", "-1"},
          {"max_sentence_length", std::to_string(longest + 1)},  // longer ones are skipped
          {"minloglevel", "2"},
      },
      &iterator, &model);
  if (!status.ok())
    throw ConfigError(fmt::format("cannot train a SentencePiece vocabulary of {} ids on this text: {}", vocab_size,
                                  message_of_library(status.message())));
  return model;
}

}  // namespace trivet
