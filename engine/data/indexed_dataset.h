// IndexedDataset: tokens on disk in Megatron's format, PREFIX.bin and PREFIX.idx, byte for byte, so that Megatron-LM,
// NeMo and Trivet can read each other's datasets.
//
//   .bin  the tokens of all sequences back to back
//   .idx  0  "MMIDIDX\0\0"      9   u64 version = 1      17  u8 token type      18  u64 S      26  u64 D
//         34 i32[S] token count of each sequence, i64[S] its byte offset in .bin,
//            i64[D] the first sequence of each document, and S at the end; [i8[S] modes, for multimodal data]
//
// Little-endian, and unaligned from byte 34 on. Where each document is one sequence, as in the output of Megatron's
// preprocessing and `trivet data prepare`, S = D - 1. As in Megatron, a GPT dataset is split and shuffled by sequence.
//
// The reader checks everything. A DataError names the file, the field, and the values found and expected.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/content_hash.h"
#include "base/files.h"

namespace trivet {

// The type of the tokens on disk, with the format's codes. Its other types (i8, i16, i64, f64, f32), which neither
// Trivet nor Megatron writes for text, are rejected.
enum class TokenType : uint8_t { u8 = 1, i32 = 4, u16 = 8 };

int64_t size_of(TokenType type);
const char* name_of(TokenType type);

// Megatron's choice: u16 for fewer than 65500 token ids, else i32.
TokenType token_type_for(int64_t vocab_size);

// Immutable and safe to read from many threads concurrently. Memory: 8 bytes per sequence.
class IndexedDataset {
 public:
  explicit IndexedDataset(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  int64_t documents() const { return documents_; }
  int64_t sequences() const { return static_cast<int64_t>(begin_.size()) - 1; }
  int64_t tokens() const { return begin_.back(); }

  // Sequence i consists of tokens [begin(i), begin(i + 1)) of the dataset. REQUIRES: 0 <= i <= sequences().
  int64_t begin(int64_t sequence) const { return begin_[static_cast<size_t>(sequence)]; }
  int64_t length(int64_t sequence) const { return begin(sequence + 1) - begin(sequence); }

  // Hashes of the sequence lengths, and of a sample of at most 16 MiB of the tokens (see sampled_hash()).
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

// Writes a dataset, one sequence per document. No file gets its final name before finish(), which renames .idx last:
// where an .idx exists, the .bin is complete. Memory: a few buffers, regardless of the dataset's size.
class IndexedDatasetWriter {
 public:
  // Resumes after `documents` and `tokens`, which the last save() of an earlier, already destroyed writer must
  // have made durable (see is_saved()).
  IndexedDatasetWriter(const std::string& prefix, TokenType type, int64_t documents = 0, int64_t tokens = 0);
  static bool is_saved(const std::string& prefix, TokenType type, int64_t documents, int64_t tokens);

  // Add tokens to the current document, and end it. Throws DataError for more than INT32_MAX tokens.
  void add(std::span<const int32_t> tokens);
  void end_document();
  void add_document(std::span<const int32_t> tokens) {
    add(tokens);
    end_document();
  }
  // Makes everything written so far durable, under the temporary names. REQUIRES: the last document has been ended.
  void save();
  // Same, after the last document: no more may follow, and the files are deleted unless finish() is called.
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
