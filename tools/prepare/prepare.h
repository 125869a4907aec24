// Converts text and JSON Lines files to a dataset: PREFIX.bin, PREFIX.idx, PREFIX.json and the tokenizer (PREFIX.model
// for SentencePiece, PREFIX.tokenizer.json and PREFIX.tokenizer_config.json for BPE). The same input and options give
// the same bytes with any number of threads. A document longer than kPieceBytes is encoded in pieces.
//
// Progress is saved every part_bytes of tokens, on an error, and if report() throws, in PREFIX.partial.json next to
// PREFIX.bin.tmp and .idx.tmp. If a call was stopped, the next one with the same files and options resumes there and
// writes the same bytes as an uninterrupted call. (Not possible with standard input.)
//
// Memory, whatever the size of the corpus: kMemoryBytes, kMemoryBytesPerThread for each thread (with BPE,
// kBpeMemoryPerThread more), and kMemoryPerLineByte times the longest line of JSON Lines, which is at most
// kMaxJsonLine. With BPE, a text is split after kMostUncutBytes even if that changes its tokens, as it does inside a
// longer word. Training a SentencePiece model comes first and takes 5 times the bytes of its training text if words
// repeat, as in natural language, and 75 times if none does. Training a BPE takes 80 times the bytes of all distinct
// words and their neighbouring marks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/bpe_pattern.h"
#include "engine/data/dataset_info.h"
#include "engine/data/tokenizer.h"
#include "tools/prepare/text_reader.h"

namespace trivet {

struct PrepareOptions {
  std::vector<std::string> inputs;  // as expand_inputs() accepts them
  std::string output;               // PREFIX
  DocumentOptions text;
  std::string tokenizer = "bytes";
  // SentencePiece and BPE need one of the two: the size of a vocabulary to train, or a model to use, which is copied.
  std::optional<int64_t> vocab_size;
  std::string model;                   // for BPE: tokenizer.json or vocab.json (bpe_model.h)
  std::optional<int64_t> train_bytes;  // training text, sampled from all input; empty: 512 per id, with BPE all of it
  // The options up to `special` are for BPE. Tokens that end and begin every document: special tokens of the given
  // model; when training, they default to <|endoftext|> and none. bos_token "none": none, even if the model has one.
  std::string eod_token, bos_token;
  std::string begin() const { return bos_token == "none" ? "" : bos_token; }
  bool special_as_text = false;               // special tokens in the text are not recognised
  std::optional<BpePattern> pattern;          // to train; empty: GPT-2's
  std::vector<std::string> special;           // to train: further special tokens
  bool append_eod = true;                     // to each document
  std::optional<uint64_t> shuffle_documents;  // seed of the permutation(), which takes 12 bytes per document
  int64_t part_bytes = 256 << 20;             // bytes of tokens between two saves
  int threads = 0;                            // to read, encode and write; 0: one per core
  bool force = false;                         // overwrite an existing dataset
};

inline constexpr int64_t kMemoryBytes = 64 << 20, kMemoryBytesPerThread = 24 << 20;
inline constexpr int64_t kBpeMemoryPerThread = 40 << 20;
inline constexpr int64_t kMemoryPerLineByte = 5, kLeastMemoryPerTrainByte = 5, kMostMemoryPerTrainByte = 75;

struct PrepareProgress {
  enum class Phase { sampling, training, encoding, shuffling };
  Phase phase = Phase::encoding;
  int64_t bytes_read = 0;   // of the files as stored
  int64_t bytes_total = 0;  // 0: unknown
  int64_t documents = 0;
  int64_t tokens = 0;  // written
};

// The finished part of a dataset; after a stop, in PREFIX.partial.json.
struct SavedPart {
  ReadPosition read;
  int64_t documents = 0, tokens = 0;  // written
  int64_t text_bytes = 0;
  int64_t replaced_bytes = 0;  // bytes of invalid UTF-8, which SentencePiece does not accept
  int64_t added_tokens = 0;    // recognised in the text
};

struct PrepareResult {
  DatasetInfo info;
  TokenType token_type = TokenType::u16;
  std::shared_ptr<const Tokenizer> tokenizer;
  SavedPart done;                     // at the end
  std::vector<std::string> problems;  // details of the first malformed documents
  SavedPart earlier;                  // the part from an earlier call that was stopped
  ExtensionCounts other_members;      // in the tar archives
  double training_seconds = 0;        // of the tokenizer, reading included
  double encoding_seconds = 0;
};

// Calls report() from time to time, from one thread at a time. Throws ConfigError for invalid options or if the output
// exists; DataError and IoError for files. After an error no new file remains except the saved progress, and existing
// files are unchanged unless a final rename failed.
PrepareResult prepare_dataset(const PrepareOptions& options,
                              const std::function<void(const PrepareProgress&)>& report = {});

}  // namespace trivet
