// The files of byte-level BPE (Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016;
// Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) in Hugging Face's formats:
// tokenizer.json, or vocab.json and merges.txt; and tokenizer_config.json.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/data/bpe_pattern.h"

namespace trivet {

struct BpeModel {
  // Matched verbatim in a text before it is split. Those with `normalized` are matched in the text between the others.
  struct Added {
    int32_t id = 0;
    std::string text;
    bool normalized = false, special = true;
  };

  std::vector<BpeSplit> splits = splits_of(BpePattern::gpt2);
  bool ignore_merges = false;  // a piece that is a token is encoded whole
  bool nfc = false;            // texts are normalised to NFC
  // Excludes added tokens that BPE itself lacks. Keys use the files' alphabet: one printable character per byte.
  std::unordered_map<std::string, int32_t> vocab;
  std::vector<std::string> tokens;             // by id; for an added token, its text; "": no token
  std::vector<std::array<int32_t, 3>> merges;  // by rank: left, right, result
  std::vector<Added> added;
  std::string begin;  // the special token that the post-processor prepends to a text; "": none

  // The id of the special token with this text. If none has it, throws a ConfigError: `where`, then the special tokens.
  int32_t special(const std::string& text, const std::string& where) const;
};

// Encodes a byte in the files' alphabet; decodes a token to bytes, empty if any character is outside the alphabet.
std::string bpe_letter(uint8_t byte);
std::optional<std::string> bpe_bytes(std::string_view token);

// Parses the bytes of a tokenizer.json; `name` is for messages. If they are malformed, or use an unimplemented feature
// that would change ids, throws DataError naming file, key, found and expected.
BpeModel parse_bpe_model(std::string_view bytes, const std::string& name);

// Reads vocab.json, and merges.txt next to it (also NAME-vocab.json and NAME-merges.txt), with GPT-2's pattern. The
// special tokens are those in `special` that the vocabulary contains. Errors as above.
BpeModel read_bpe_vocab(const std::string& path, const std::vector<std::string>& special);
inline bool is_bpe_vocab(std::string_view path) { return path.ends_with("vocab.json"); }

std::string to_tokenizer_json(const BpeModel& model);
// The file `json` that `model` was read from, with a post-processor for model.begin and no other.
std::string with_begin(std::string_view json, const BpeModel& model);

// Hashes of everything that affects encoding: tokens, merges, and the rules for splitting and normalising texts.
// Loading a file with transformers and saving it leaves the hashes unchanged.
std::string bpe_fingerprint(const BpeModel& model);
// Names which of the three hashes differ, after ": "; "" if either fingerprint is not of a BPE tokenizer.
std::string bpe_difference(const std::string& fingerprint, const std::string& other);

// Not in tokenizer.json: the token that ends a document, and the one that begins it, if any.
struct BpeEnds {
  std::string eod, bos;
  std::string eod_source = "--eod-token", bos_source = "--bos-token";  // for messages
};
// source: a tokenizer_config.json whose other members are copied, if it exists.
std::string to_tokenizer_config(const BpeEnds& ends, const std::string& source = "");
BpeEnds read_tokenizer_config(const std::string& path);
// The end-of-document token in the tokenizer_config.json next to a model, for messages.
std::string eos_token_beside(const std::string& model);
// Throws ConfigError if the model prepends a token to texts. `asked` (--bos-token) and the file's `name`: for messages.
void expect_no_begin(const BpeModel& model, const std::string& asked, const std::string& name);
// The tokenizer_config.json next to [PREFIX.]tokenizer.json.
inline std::string tokenizer_config_of(const std::string& path) {
  return path.substr(0, path.rfind("tokenizer.json")) + "tokenizer_config.json";
}

constexpr int64_t kMaxBpeBytes = 256 << 20;  // of one file

}  // namespace trivet
