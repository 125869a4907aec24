// What `trivet data prepare` had done of a dataset when it was stopped: PREFIX.partial.json, beside the tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/prepare/text_reader.h"

namespace trivet {

struct SavedPart {
  ReadPosition read;
  int64_t documents = 0, tokens = 0;  // written
  int64_t text_bytes = 0;
  int64_t replaced_bytes = 0;  // invalid UTF-8, which SentencePiece does not accept
  int64_t added_tokens = 0;    // recognised in the text
};

// identity: of input and options. The part is durable when this returns.
void write_saved_part(const std::string& path, const std::string& identity, const SavedPart& part);
// Empty where there is no such file, or one of another identity. A DataError for what is none.
std::optional<SavedPart> read_saved_part(const std::string& path, const std::string& identity);

}  // namespace trivet
