#include "engine/data/text_printer.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace trivet::test {
namespace {

// The text printed after each token, and at the end.
std::vector<std::string> pieces_of(const Tokenizer* tokenizer, const std::vector<int32_t>& tokens) {
  std::vector<std::string> pieces;
  TextPrinter printer(tokenizer, [&](const std::string& piece) { pieces.push_back(piece); });
  for (const int32_t token : tokens) printer.add({&token, 1});
  printer.finish();
  return pieces;
}

TEST(TextPrinter, HoldsACharacterBackUntilItIsWhole) {
  const auto tokenizer = make_bytes_tokenizer();
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces_of(tokenizer.get(), tokenizer->encode("a\u00E9\u20ACz")),
            (Pieces{"a", "\u00E9", "\u20AC", "z", "\n"}));
  EXPECT_EQ(pieces_of(tokenizer.get(), {'a', 0xE2, 0x82}), (Pieces{"a", "\xE2\x82\n"}));
}

TEST(TextPrinter, PutsACharacterOfFourBytesAsOnePiece) {
  const auto tokenizer = make_bytes_tokenizer();
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces_of(tokenizer.get(), tokenizer->encode("a\U0001F600z")), (Pieces{"a", "\U0001F600", "z", "\n"}));
}

TEST(TextPrinter, GivesIdsWithoutATokenizer) {
  EXPECT_EQ(pieces_of(nullptr, {7, 300}), (std::vector<std::string>{"7", ",300", "\n"}));
}

}  // namespace
}  // namespace trivet::test
