#include "engine/data/tokenizer.h"

#include <fmt/format.h>

#include "engine/data/dataset_info.h"
#include "engine/data/sentencepiece_tokenizer.h"
#include "kernels/base/check.h"

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

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& prefix) {
  const std::string model = prefix + ".model";
  const auto info = read_dataset_info(prefix);
  if (!info && !file_exists(model))
    throw DataError(
        fmt::format("{0}: found neither {0}.json nor {0}.model, expected one of them to name its tokenizer", prefix));
  auto tokenizer = info && info->tokenizer == "bytes" ? make_bytes_tokenizer() : load_sentencepiece(model);
  if (info && (info->fingerprint != tokenizer->fingerprint() || info->vocab_size != tokenizer->vocab_size() ||
               info->eod != tokenizer->eod()))
    throw DataError(
        fmt::format("{}.json: the dataset was made with a {} tokenizer of {} ids, end of document {} ({}); "
                    "{} has {} ids, end of document {} ({})",
                    prefix, info->tokenizer, info->vocab_size, info->eod, info->fingerprint,
                    info->tokenizer == "bytes" ? "the bytes tokenizer" : model, tokenizer->vocab_size(),
                    tokenizer->eod(), tokenizer->fingerprint()));
  return tokenizer;
}

}  // namespace trivet
