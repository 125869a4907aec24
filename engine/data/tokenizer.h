// Tokenizer: text to token ids and back. Two kinds: `bytes`, where every byte is its own token, and SentencePiece.
//
// Immutable to its users and safe to call from many threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trivet {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string kind() const = 0;  // "bytes" or "sentencepiece"
  virtual int64_t vocab_size() const = 0;
  virtual int32_t eod() const = 0;  // ends every document; never part of encode()'s result

  // Equal for equal tokenizers: "bytes", or the hash of the model file.
  virtual std::string fingerprint() const = 0;

  // goes_on: the text before it, up to this white space, was encoded by another call.
  std::vector<int32_t> encode(std::string_view text) const { return encode(text, false); }
  virtual std::vector<int32_t> encode(std::string_view text, bool goes_on) const = 0;

  // The end of document is not text. An id outside the vocabulary is a DataError.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;

  // A token's name in a table.
  virtual std::string piece(int32_t token) const = 0;
};

// Ids 0 … 255 are the bytes, 256 is the end of document. decode(encode(x)) == x for any bytes.
std::unique_ptr<Tokenizer> make_bytes_tokenizer();

// The tokenizer of the dataset PREFIX, by PREFIX.json, or without one by PREFIX.model. Another model than the dataset
// was made with, or a dataset without both files, is a DataError.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& prefix);

}  // namespace trivet
