// What has to hold for a .model file before it is given to the SentencePiece library. The library parses the protobuf
// safely but trusts what is in it: a damaged table of characters makes it read out of bounds.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>

namespace trivet {

struct SentencePieceFacts {
  int64_t pieces = 0;
  bool adds_space = true;  // in front of a text: "add_dummy_prefix"

  // Whether this is a BPE model with byte fallback that changes no character, and adds and removes no space. Such a
  // model encodes a text as the concatenation of its parts, if no piece reaches over the cuts between them.
  bool concatenates = false;

  // Bit 256 a + b: some piece has byte b behind byte a, so that a text must not be cut between them.
  std::bitset<65536> joined;
};

// Throws a DataError that begins with `name` where the bytes are no model.
SentencePieceFacts check_sentencepiece_model(std::string_view bytes, const std::string& name);

}  // namespace trivet
