// SentencePiece models (Kudo and Richardson, "SentencePiece: A simple and language independent subword tokenizer and
// detokenizer for Neural Text Processing", 2018), through the SentencePiece library. A cache of words speeds up
// encoding with models trained here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"

namespace trivet {

constexpr int64_t kMaxSentencePieceBytes = 256 << 20;  // of a model file

// The end of document is the model's end-of-sentence piece. Throws DataError naming the file if the model is invalid or
// lacks that piece.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path);

// Same, from a file's bytes; `name` is for messages.
std::unique_ptr<Tokenizer> make_sentencepiece(std::string model, const std::string& name);

// The smallest vocabulary to train: two special ids, 256 bytes, and room for characters.
constexpr int64_t kMinSentencePieceVocab = 300;

// Trains a model on these sentences and returns the bytes of its file: byte pair encoding with byte fallback and
// without normalisation, so that decode(encode(x)) == x for UTF-8 text without U+2581. Deterministic; about 5 s for 8
// MB and 8192 ids on one core. Throws ConfigError if the text is too small for the vocabulary.
std::string train_sentencepiece(const std::vector<std::string>& sentences, int64_t vocab_size);

}  // namespace trivet
