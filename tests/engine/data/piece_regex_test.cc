// The matches of regular expressions; tests/tools/prepare/bpe_test.cc compares them with Oniguruma's.
#include <algorithm>
#include <fmt/ranges.h>
#include <random>

#include "engine/data/bpe_pattern.h"
#include "tests/engine/data/support.h"

namespace trivet {
namespace {

std::string pieces_of(std::string pattern, std::string_view text, BpeSplit::Keep keep = BpeSplit::Keep::all) {
  std::vector<std::string> pieces;
  BpeCutter({{std::move(pattern), keep}}).cut(text, false, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return fmt::format("{}", fmt::join(pieces, "_"));
}

TEST(PieceRegex, FindsWhatBacktrackingFinds) {
  const struct {
    std::string pattern, text, pieces;
  } rows[] = {
      {"a|ab", "abab", "a_b_a_b"},  // the first alternative, not the longest
      {"ab|a", "aab", "a_ab"},
      {"(?:a|ab)(?:c|bcd)", "abcd", "abcd"},
      {"a+b|a", "aaab aaa", "aaab_ _a_a_a"},  // backtracks
      {"a{2}|a", "aaaaa", "aa_aa_a"},
      {"a{2,3}|a", "aaaaaaaa", "aaa_aaa_aa"},
      {"a{,2}b", "aaab", "a_aab"},
      {"a{2,}", "aaaaab", "aaaaa_b"},
      {"a{1,3}+", "aaaaa", "aaaaa"},  // no possessive quantifier
      {"a?+a|b", "aab", "aa_b"},
      {"a++a|a|b", "aab", "a_a_b"},
      {"(?i:'S|k)x?", "'sx'Sk'\u017fx\u212a", "'sx_'S_k_'\u017fx_\u212a"},
      {"x(?=y)|x(?!x)", "xxyxx", "x_x_yx_x"},
      {"x+$", "xx\nxxy xx", "xx_\nxxy _xx"},
      {"[^a-c\\]]+", "abdec]f", "ab_de_c]_f"},
      {"[\\-a-]+|[[bc]d]+", "-a-bdcx", "-a-_bdc_x"},
      {"\\p{Lu}\\p{Ll}+|\\P{L}|\\d+|\\S", "Ab12\u00c9\u00e9", "Ab_1_2_\u00c9\u00e9"},
      {".", "a\nb", "a_\n_b"},
      {"[\u4e00-\u9fa5]+", "a\u4eba\u4ebab", "a_\u4eba\u4eba_b"},
      {"\\p{So}+", "a\xff\xfe\ufffd-", "a_\xff\xfe\ufffd_-"},  // bytes that are not UTF-8
  };
  for (const auto& [pattern, text, pieces] : rows) EXPECT_EQ(pieces_of(pattern, text), pieces) << pattern;
  EXPECT_EQ(pieces_of("a+", "xaayaz", BpeSplit::Keep::matches), "aa_a");
  EXPECT_EQ(pieces_of("a+", "xaayaz", BpeSplit::Keep::gaps), "x_y_z");
}

TEST(PieceRegex, NamesWhatItDoesNotImplement) {
  const struct {
    std::string pattern, message;
  } rows[] = {
      {"a(?<=b)", "a kind of group, not implemented, in the pattern \"a(?<=b)\" before character 3"},
      {"ab^", "an anchor or quantifier, not implemented, in the pattern \"ab^\" before character 4"},
      {"a*?", "a lazy or"},
      {"(?:ab)++", "a group's possessive quantifier"},
      {"(?!ab)c", "a look-ahead of more than one character"},
      {"\\w", "an escape, not implemented,"},
      {"\\x41", "an escape, not implemented,"},
      {"\\p{Han}", "a property that is not a general category"},
      {"\\p{", "an unexpected end"},
      {"[a&&b]", "an intersection, POSIX or empty class"},
      {"[[:alpha:]]", "an intersection, POSIX or empty class"},
      {"[b-a]", "an invalid range"},
      {"[\\s-a]", "an invalid range"},
      {"[]", "an intersection, POSIX or empty class"},
      {"[a", "an unexpected end"},
      {"(a", "a missing )"},
      {"a)", "an unmatched )"},
      {"a{3,2}", "an invalid quantifier"},
      {std::string(20000, 'a'), "more characters than are supported"},
      {"a{2000}", "too many repeats"},
      {"(?:a{1000}){1000}", "too many repeats"},
      {"(?:[ab]*a[ab]{16})", "too many states"},
      {"(?i:\u00e9)", "characters beyond ASCII"},
      {"(?i:ss)", "a ligature"},
      {"a*", "an empty match"},
      {"a|", "an empty match"},
      {"(?=a)", "an empty match"},
      {std::string(300, '('), "a group nested too deeply"},
      {std::string(300, '['), "a class nested too deeply"},
  };
  for (const auto& [pattern, message] : rows) {
    const std::string found = message_of<DataError>([&] { const PieceRegex regex(pattern); });
    EXPECT_TRUE(contains(found, message)) << pattern << ": " << found;
  }
}

// Patterns changed at random: those that compile lose no text, and texts are split only where the pieces stay the same.
TEST(PieceRegex, CutsTextsWherePiecesStay) {
  const std::string patterns[] =
      {R"([^\r\n\p{L}]?+[\p{Lu}\p{M}]*[\p{Ll}]++(?i:'s|'ll)?|\p{N}{1,3}| ?[^\s\d]+|\s+(?!\S)|\s)",
       R"((a|b(?:c|.)?)+|[[^x-z]\-])", R"('(?i:[sdmt]|ll)|\p{N}{1,3}+|\s++$|\s*[\r\n]|\s)"},
                    units[] = {"a", "b", "ab", "'s", " ", "\n", "1", "23", "\u00e9", "\xff", "Aa", ".", "x"};
  const std::string letters = "()[]{}+*?|^$\\.,-:!=<iabs19 npdSPD'";
  std::mt19937_64 random(1);
  int compiled = 0, cuts = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string pattern = patterns[random() % std::size(patterns)];
    for (uint64_t changes = random() % 4; changes > 0; --changes) {
      const size_t at = random() % pattern.size();
      if (random() % 2 == 0) pattern.erase(at, 1 + random() % 2);
      else pattern.insert(at, 1, letters[random() % letters.size()]);
    }
    std::string text;
    for (int unit = 0; unit < 40; ++unit) text += units[random() % std::size(units)];
    try {
      const BpeCutter cutter({{pattern}});
      ++compiled;
      const auto pieces = [&](std::string_view part) {
        std::vector<std::string> found;
        cutter.cut(part, false, [&](std::string_view piece) { found.emplace_back(piece); });
        return found;
      };
      const std::vector<std::string> whole = pieces(text);
      ASSERT_EQ(fmt::format("{}", fmt::join(whole, "")), text) << pattern;
      for (size_t most = 4; most < 50; most += 7) {
        const size_t size = cutter.part_size(text, most, [](size_t) { return true; });
        if (size == 0 || size == text.size()) continue;
        ++cuts;
        std::vector<std::string> parts = pieces(std::string_view(text).substr(0, size));
        for (std::string& piece : pieces(std::string_view(text).substr(size))) parts.push_back(std::move(piece));
        ASSERT_EQ(parts, whole) << pattern << " at " << size;
      }
    } catch (const DataError&) {  // not implemented
    }
  }
  EXPECT_GT(compiled, 300);
  EXPECT_GT(cuts, 1000);
}

// Counts bytes read, not time: each byte is read once, apart from the look-ahead of matches.
TEST(PieceRegex, ReadsTextsOnce) {
  const std::string units[] = {"a", " ", "\n", " \n", "7", "!", "'", "\u0301", "\u4eba", "aB", "a ", "\xff", " x"};
  for (const auto pattern : {BpePattern::gpt2, BpePattern::llama3, BpePattern::qwen2})
    for (const std::string& unit : units) {
      std::string text;
      while (text.size() < 30'000) text += unit;
      text += 'x';
      const PieceRegex regex(regex_of(pattern));
      size_t read = 0;
      for (size_t at = 0; at < text.size();) {
        const PieceRegex::Match match = regex.match(std::string_view(text).substr(at));
        at += match.size;
        read += match.read;
      }
      EXPECT_LE(read, 3 * text.size()) << unit;
    }
}

TEST(PieceRegex, EndsWhereATextIsReadAgainAndAgain) {
  const std::string text(100'000, 'a');
  EXPECT_TRUE(contains(message_of<DataError>([&] { pieces_of("a+b", text); }),
                       "the pattern \"a+b\" takes too many steps to split a text of 100000 bytes"));
}

}  // namespace
}  // namespace trivet
