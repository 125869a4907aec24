// Tokenizer: text to token ids and back. Three kinds: `bytes`, with one token per byte, SentencePiece, and byte-level
// BPE.
//
// Immutable from the outside; thread-safe.
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

  virtual std::string kind() const = 0;  // "bytes", "sentencepiece" or "bpe"
  virtual int64_t vocab_size() const = 0;
  virtual int32_t eod()
      const = 0;  // ends every document; encode() returns it only where the text contains it as a BPE special token
  virtual int32_t bos() const { return -1; }  // begins every document; -1: none does

  // Equal for equal tokenizers: "bytes", the hash of the model file, or bpe_fingerprint().
  virtual std::string fingerprint() const = 0;

  // How many of these tokens, from encode(), are added tokens recognised in the text.
  virtual int64_t count_added(std::span<const int32_t>) const { return 0; }

  // Where to split `text` so that its first part is at most `most` bytes long; 0 if that is impossible. The text's
  // size if it is no longer than that.
  virtual size_t part_size(std::string_view text, size_t most) const;

  // goes_on: another call encoded the preceding text, up to a split by part_size().
  std::vector<int32_t> encode(std::string_view text) const { return encode(text, false); }
  virtual std::vector<int32_t> encode(std::string_view text, bool goes_on) const = 0;

  // Encodes the beginning of a document: bos(), if any, and the text; eod() if both are missing.
  std::vector<int32_t> encode_prompt(std::string_view text) const;

  // Skips the ids that begin and end documents. Throws DataError for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;

  // A token's name in a table.
  virtual std::string piece(int32_t token) const = 0;
};

// Ids 0 … 255 are the bytes, 256 is the end of document. decode(encode(x)) == x for any bytes.
std::unique_ptr<Tokenizer> make_bytes_tokenizer();

// The file of a dataset's tokenizer: PREFIX.tokenizer.json or PREFIX.model, whichever exists; else "".
std::string tokenizer_file(const std::string& prefix);

// Loads a tokenizer.json, next to which tokenizer_config.json names the end of document, or a SentencePiece model.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

// Throws DataError if this is not the tokenizer that the model `of` was trained with (judged by the fingerprint, if
// known), or if it uses more ids than the model's vocabulary.
void check_tokenizer(const Tokenizer& tokenizer, const std::string& fingerprint, int64_t vocab, const std::string& of);

// The tokenizer of the dataset PREFIX, by PREFIX.json, or without that file by tokenizer_file(). Throws DataError if
// that tokenizer did not encode the dataset, or if the dataset comes without these files.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& prefix);

}  // namespace trivet
