// Validates a .model file before the SentencePiece library reads it. The library parses the protobuf safely but trusts
// its content: a damaged character table makes it read out of bounds.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>

namespace trivet {

struct SentencePieceFacts {
  int64_t pieces = 0;
  bool adds_space = true;  // prepends a space to a text: "add_dummy_prefix"

  // True if this is a BPE model with byte fallback and without normalisation. It encodes a text as its parts,
  // concatenated, if no piece spans a boundary between them.
  bool concatenates = false;

  // Bit 256 a + b: in some piece byte b follows byte a, so a text must not be split between them.
  std::bitset<65536> joined;
};

// Throws DataError, beginning with `name`, if the bytes are not a valid model.
SentencePieceFacts check_sentencepiece_model(std::string_view bytes, const std::string& name);

}  // namespace trivet
