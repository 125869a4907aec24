#include "engine/data/tokenizer.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/utf8.h"
#include "engine/data/bpe_tokenizer.h"
#include "engine/data/dataset_info.h"
#include "engine/data/sentencepiece_tokenizer.h"

namespace trivet {
namespace {

class BytesTokenizer final : public Tokenizer {
 public:
  std::string kind() const override { return "bytes"; }
  std::string fingerprint() const override { return "bytes"; }
  int64_t vocab_size() const override { return kEod + 1; }
  int32_t eod() const override { return kEod; }

  std::vector<int32_t> encode(std::string_view text, bool) const override {
    std::vector<int32_t> tokens(text.size());
    for (size_t i = 0; i < text.size(); ++i) tokens[i] = static_cast<uint8_t>(text[i]);
    return tokens;
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      if (token < 0 || token > kEod)
        throw DataError(fmt::format("token id {} is not in the bytes tokenizer, expected 0 to {}", token, kEod));
      if (token != kEod) text += static_cast<char>(token);
    }
    return text;
  }

  std::string piece(int32_t token) const override {
    if (token == kEod) return "<eod>";
    const std::string byte = decode({&token, 1});
    return token >= ' ' && token < 127 ? byte : fmt::format("<0x{:02X}>", token);
  }

 private:
  static constexpr int32_t kEod = 256;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bytes_tokenizer() { return std::make_unique<BytesTokenizer>(); }

size_t Tokenizer::part_size(std::string_view text, size_t most) const { return trivet::part_size(text, most); }

std::vector<int32_t> Tokenizer::encode_prompt(std::string_view text) const {
  std::vector<int32_t> tokens = encode(text);
  if (bos() >= 0) tokens.insert(tokens.begin(), bos());
  if (tokens.empty()) tokens.push_back(eod());  // after the end of one document, the next begins
  return tokens;
}

std::string tokenizer_file(const std::string& prefix) {
  for (const char* suffix : {".tokenizer.json", ".model"})
    if (file_exists(prefix + suffix)) return prefix + suffix;
  return "";
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  return path.ends_with(".json") ? load_bpe(path) : load_sentencepiece(path);
}

void check_tokenizer(const Tokenizer& tokenizer, const std::string& fingerprint, int64_t vocab, const std::string& of) {
  if (!fingerprint.empty() && fingerprint != tokenizer.fingerprint())
    throw DataError(
        fmt::format("{}: the model was trained with a different tokenizer: found the fingerprint {}, expected {}{}", of,
                    tokenizer.fingerprint(), fingerprint, bpe_difference(tokenizer.fingerprint(), fingerprint)));
  if (tokenizer.vocab_size() > vocab)
    throw DataError(
        fmt::format("{}: the tokenizer has {} ids, but the model's vocabulary {}", of, tokenizer.vocab_size(), vocab));
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& prefix) {
  const auto info = read_dataset_info(prefix);
  std::string file = info ? prefix + (info->tokenizer == "bpe" ? ".tokenizer.json" : ".model") : tokenizer_file(prefix);
  if (file.empty())
    throw DataError(fmt::format(
        "{0}: found neither {0}.json, {0}.tokenizer.json nor {0}.model, expected one of them to name its tokenizer",
        prefix));
  const bool bytes = info && info->tokenizer == "bytes";
  auto tokenizer = bytes ? make_bytes_tokenizer() : load_tokenizer(file);
  const auto text_of = [](int64_t ids, int64_t eod, int64_t bos, const std::string& fingerprint) {
    return fmt::format("{} ids, end of document {}, beginning {} ({})", ids, eod, bos, fingerprint);
  };
  if (!info) return tokenizer;
  const std::string made = text_of(info->vocab_size, info->eod, info->bos, info->fingerprint),
                    found =
                        text_of(tokenizer->vocab_size(), tokenizer->eod(), tokenizer->bos(), tokenizer->fingerprint());
  if (made != found)
    throw DataError(fmt::format("{}.json: the dataset was made with a {} tokenizer of {}; {} has {}{}", prefix,
                                info->tokenizer, made, bytes ? "the bytes tokenizer" : file, found,
                                bpe_difference(info->fingerprint, tokenizer->fingerprint())));
  return tokenizer;
}

}  // namespace trivet
