// IndexedDataset: tokens on disk in Megatron's format, PREFIX.bin and PREFIX.idx, byte for byte, so that datasets go
// both ways between Megatron-LM, NeMo and Trivet.
//
//   .bin  the tokens of all sequences back to back
//   .idx  0  "MMIDIDX\0\0"      9   u64 version = 1      17  u8 token type      18  u64 S      26  u64 D
//         34 i32[S] tokens of each sequence, i64[S] its byte offset in .bin,
//            i64[D] the sequence each document starts at, and S at the end; [i8[S] modes, of multimodal data]
//
// All little-endian and from byte 34 on unaligned. Where a document is one sequence, as Megatron's preprocessing and
// `trivet data prepare` write it, S = D - 1. As in Megatron, a GPT dataset is split and shuffled by sequence.
//
// The reader checks everything: an inconsistency is a DataError naming file, field, what was found and expected.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/content_hash.h"
#include "base/files.h"

namespace trivet {

// The type of tokens on disk, by the format's codes. Its others (i8, i16, i64, f64, f32), which neither Trivet nor
// Megatron writes for text, are refused.
enum class TokenType : uint8_t { u8 = 1, i32 = 4, u16 = 8 };

int64_t size_of(TokenType type);
const char* name_of(TokenType type);

// Megatron's choice: u16 below 65500 token ids, else i32.
TokenType token_type_for(int64_t vocab_size);

// Immutable and safe to read from many threads concurrently. Memory: 8 bytes a sequence.
class IndexedDataset {
 public:
  explicit IndexedDataset(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  int64_t documents() const { return documents_; }
  int64_t sequences() const { return static_cast<int64_t>(begin_.size()) - 1; }
  int64_t tokens() const { return begin_.back(); }

  // The tokens of sequence i are [begin(i), begin(i + 1)) of the dataset's. REQUIRES: 0 <= i <= sequences().
  int64_t begin(int64_t sequence) const { return begin_[static_cast<size_t>(sequence)]; }
  int64_t length(int64_t sequence) const { return begin(sequence + 1) - begin(sequence); }

  // Hashes of the sequences' lengths, and of samples of the tokens, at most 16 MiB: sampled_hash().
  std::string lengths_hash() const {
    return content_hash({reinterpret_cast<const char*>(begin_.data()), begin_.size() * sizeof begin_[0]});
  }
  std::string tokens_hash() const { return sampled_hash(bin_); }

  // Reads the tokens from `first` on. Values are as stored: the caller knows the vocabulary.
  void read(int64_t first, std::span<int32_t> tokens) const;

 private:
  void read_index(const InputFile& idx);

  std::string prefix_;
  InputFile bin_;
  TokenType type_ = TokenType::u16;
  int64_t documents_ = 0;
  std::vector<int64_t> begin_;  // [S + 1], in tokens
};

// Writes a dataset, a document a sequence. No file has its final name before finish(), which renames .idx last: where
// an .idx exists, the .bin is complete. Memory: a few buffers, whatever is written.
class IndexedDatasetWriter {
 public:
  // Continues after that many documents and tokens, the last save() of a writer that no longer exists:
  // is_saved().
  IndexedDatasetWriter(const std::string& prefix, TokenType type, int64_t documents = 0, int64_t tokens = 0);
  static bool is_saved(const std::string& prefix, TokenType type, int64_t documents, int64_t tokens);

  // Tokens of the current document, and its end. A document of more than INT32_MAX tokens is a DataError.
  void add(std::span<const int32_t> tokens);
  void end_document();
  void add_document(std::span<const int32_t> tokens) {
    add(tokens);
    end_document();
  }
  // Makes all that was written durable; it stays under the temporary names. REQUIRES: the last document has its end.
  void save();
  // The same at the end: no document after it, and the files do not stay without finish().
  void sync();
  void finish();

  std::string bin_hash() const { return hash_.hex(); }
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }

 private:
  std::string prefix_;
  TokenType type_;
  OutputFile bin_;
  OutputFile idx_;
  ContentHash hash_;
  int64_t documents_ = 0;
  int64_t length_ = 0;  // of the current document so far
  int64_t tokens_ = 0;
  bool synced_ = false;
};

}  // namespace trivet
