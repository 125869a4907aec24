// The files of byte-level BPE (Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016;
// Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) as Hugging Face has them:
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
  // Recognised in texts as they are, before the pieces. Those with `normalized` are looked for between the others.
  struct Added {
    int32_t id = 0;
    std::string text;
    bool normalized = false, special = true;
  };

  std::vector<BpeSplit> splits = splits_of(BpePattern::gpt2);
  bool ignore_merges = false;  // a piece that is a token is taken whole
  bool nfc = false;            // texts are normalised
  // Without added tokens that are no tokens of BPE. In the files' alphabet, a printable character for each byte.
  std::unordered_map<std::string, int32_t> vocab;
  std::vector<std::string> tokens;             // by id; of added ones the text; "" if there is none
  std::vector<std::array<int32_t, 3>> merges;  // the first first: left, right, result
  std::vector<Added> added;
  std::string begin;  // the special token that the post-processor puts in front of a text; "": none

  // The special token of this text; a ConfigError, beginning with `where`, that lists those that exist.
  int32_t special(const std::string& text, const std::string& where) const;
};

// A byte in the files' alphabet, and a token's bytes; empty if it has another character.
std::string bpe_letter(uint8_t byte);
std::optional<std::string> bpe_bytes(std::string_view token);

// Parses the bytes of a tokenizer.json; `name` is for messages. If malformed, or with a feature that would change ids
// and is not implemented, throws DataError naming file, key, found and expected.
BpeModel parse_bpe_model(std::string_view bytes, const std::string& name);

// Reads vocab.json, and merges.txt next to it (also NAME-vocab.json and NAME-merges.txt), with GPT-2's pattern. Special
// tokens are those of `special` that the vocabulary has. Errors are the same.
BpeModel read_bpe_vocab(const std::string& path, const std::vector<std::string>& special);
inline bool is_bpe_vocab(std::string_view path) { return path.ends_with("vocab.json"); }

std::string to_tokenizer_json(const BpeModel& model);
// The file `json`, of which `model` was read, with a post-processor for model.begin and no other.
std::string with_begin(std::string_view json, const BpeModel& model);

// Hashes of everything that affects encoding: tokens, merges, and the rules by which texts are cut and normalised. A
// file that transformers loaded and saved again has the same.
std::string bpe_fingerprint(const BpeModel& model);
// The names of those of the three that differ, after ": "; "" if one is not of a BPE.
std::string bpe_difference(const std::string& fingerprint, const std::string& other);

// Missing in tokenizer.json: the token that ends a document, and the one that begins it, if any is put there.
struct BpeEnds {
  std::string eod, bos;
  std::string eod_source = "--eod-token", bos_source = "--bos-token";  // for messages
};
// source: a tokenizer_config.json whose other members are copied, if it exists.
std::string to_tokenizer_config(const BpeEnds& ends, const std::string& source = "");
BpeEnds read_tokenizer_config(const std::string& path);
// The end of document according to the tokenizer_config.json next to a model, for messages.
std::string eos_token_beside(const std::string& model);
// A ConfigError if the file `name` puts another token in front of texts than `asked`, which "none" would settle.
void expect_no_begin(const BpeModel& model, const std::string& asked, const std::string& name);
// The tokenizer_config.json next to [PREFIX.]tokenizer.json.
inline std::string tokenizer_config_of(const std::string& path) {
  return path.substr(0, path.rfind("tokenizer.json")) + "tokenizer_config.json";
}

constexpr int64_t kMaxBpeBytes = 256 << 20;  // of a file

}  // namespace trivet
