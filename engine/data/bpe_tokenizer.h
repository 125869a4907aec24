// Byte-level BPE in time linear in the text but for a factor log of its longest piece, token for token as Hugging
// Face's `tokenizers` (add_special_tokens=False). Bytes that are not UTF-8 keep their place: decode(encode(x)) == x for
// any bytes without the tokens that begin and end documents, unless the model normalises texts (NFC), adds a space in
// front or has a pattern that removes text.
#pragma once

#include <memory>
#include <string>

#include "engine/data/bpe_model.h"
#include "engine/data/tokenizer.h"

namespace trivet {

// special_as_text: special tokens in texts are not recognised (`encode_special_tokens` of `tokenizers`).
std::unique_ptr<Tokenizer> make_bpe(BpeModel model, const BpeEnds& ends, bool special_as_text);

// From PATH, which ends in tokenizer.json, and the tokenizer_config.json next to it.
std::unique_ptr<Tokenizer> load_bpe(const std::string& path);

}  // namespace trivet
