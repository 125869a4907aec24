// Byte-level BPE, token for token as in Hugging Face's `tokenizers` (add_special_tokens=False), in time linear in the
// text times the log of its longest piece. Bytes that are not UTF-8 are preserved: decode(encode(x)) == x for any bytes
// that contain no token that begins or ends documents, unless the model normalises texts (NFC), prepends a space or has
// a pattern that removes text.
#pragma once

#include <memory>
#include <string>

#include "engine/data/bpe_model.h"
#include "engine/data/tokenizer.h"

namespace trivet {

// special_as_text: special tokens in texts are not recognised (`encode_special_tokens` of `tokenizers`).
std::unique_ptr<Tokenizer> make_bpe(BpeModel model, const BpeEnds& ends, bool special_as_text);

// Loads PATH, which ends in tokenizer.json, and the tokenizer_config.json next to it.
std::unique_ptr<Tokenizer> load_bpe(const std::string& path);

}  // namespace trivet
