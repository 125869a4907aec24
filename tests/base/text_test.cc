#include "base/text.h"

#include <cmath>
#include <gtest/gtest.h>

#include "base/utf8.h"

namespace trivet {
namespace {

TEST(Text, Numbers) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-123456), "-123,456");
  EXPECT_EQ(grouped(124439808), "124,439,808");
  EXPECT_EQ(grouped(INT64_MIN), "-9,223,372,036,854,775,808");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(int64_t{3} << 40), "3.00 TiB");
  EXPECT_EQ(duration_text(7.4), "0:07");
  EXPECT_EQ(duration_text(754), "12:34");
  EXPECT_EQ(duration_text(3723), "1:02:03");
  EXPECT_EQ(duration_text(3 * 86400 + 4 * 3600 + 5 * 60 + 6), "3d 04:05:06");
  EXPECT_EQ(duration_text(std::nan("")), "-");
  EXPECT_EQ(percent_text(0.4123), "41.2%");
}

TEST(Text, BlocksAreAligned) {
  EXPECT_EQ(render({{"model", {{"layers", "2"}, {"hidden size", "768"}}, "lr"}, {"é", {{"ü", "a", ""}, {"x", "b"}}}}),
            "model\n"
            "  layers         2\n"
            "  hidden size  768\n"
            "é\n"
            "  ü            a\n"
            "  x            b\n");
}

// Characters of 1 to 4 bytes behind 0 to 3 bytes of ASCII, so that each limit falls on each byte of a character.
TEST(Text, PartsEndBetweenCharacters) {
  for (const std::string_view character : {"a", "\u00e9", "\u4eba", "\U0001f600"})
    for (size_t before = 0; before < 4; ++before) {
      std::string text(before, 'x');
      for (int i = 0; i < 20; ++i) text += character;
      for (size_t most = 4; most <= text.size(); ++most) {
        std::string_view rest = text;
        while (!rest.empty()) {
          const size_t size = part_size(rest, most);
          ASSERT_TRUE(size > 0 && size <= most && size <= rest.size());
          EXPECT_TRUE(size == rest.size() || size + character.size() > most) << "as long as possible";
          std::string part(rest.substr(0, size));
          EXPECT_EQ(repair_utf8(part), 0) << character << " behind " << before << " bytes, limit " << most;
          rest.remove_prefix(size);
        }
      }
    }
}

TEST(Text, ATableBeginsWithTheNamesOfItsColumns) {
  TextBlock table{.title = ""};
  table.column("name", 'l');
  table.column("n", 'r');
  table.rows.push_back({"a", "12"});
  EXPECT_EQ(render({table}),
            "name   n\n"
            "a     12\n");
}

TEST(Text, WrapsBetweenWords) {
  EXPECT_EQ(wrapped("one two  three", 0), "one two  three");
  EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 9, 2), "one two\n  three");
  EXPECT_EQ(wrapped("unbreakable is", 4), "unbreakable\nis");
  EXPECT_EQ(wrapped("\née é é", 4), "\née é\né");
}

TEST(Text, ATableThatIsTooWideContinuesBelowWithItsFirstColumn) {
  const TextBlock table{.title = "t", .rows = {{"#", "name", "a", "sum"}, {"12", "x", "100", "300"}}, .align = "rlrr"};
  EXPECT_EQ(render({table}), "t\n   #  name    a  sum\n  12  x     100  300\n");
  EXPECT_EQ(render({table}, 20), render({table}));
  EXPECT_EQ(render({table}, 19), "t\n   #  name    a\n  12  x     100\n\n   #  sum\n  12  300\n");
  EXPECT_EQ(render({table}, 5), "t\n   #  name\n  12  x\n\n   #    a\n  12  100\n\n   #  sum\n  12  300\n");
}

TEST(Text, CsvQuotesWhatNeedsIt) {
  EXPECT_EQ(csv_line({"a", "", "b,c", "say \"so\"", "two\nlines"}), "a,,\"b,c\",\"say \"\"so\"\"\",\"two\nlines\"\r\n");
  // The quote keeps a spreadsheet from evaluating a cell; numbers need none.
  EXPECT_EQ(csv_line({"=1+1", "@a", "+x", "-", "-1.5", "+2"}), "'=1+1,'@a,'+x,-,-1.5,+2\r\n");
}

TEST(Text, CsvIsReadAsItIsWritten) {
  const std::vector<std::string> cells = {"a", "", "b,c", "say \"so\"", " x ", "1.5"};
  EXPECT_EQ(csv_cells("a,,\"b,c\",\"say \"\"so\"\"\",\" x \",1.5"), cells);
  EXPECT_EQ(csv_cells(" a b , \"c\" ,d"), (std::vector<std::string>{"a b", "c", "d"}));
  EXPECT_EQ(csv_cells(""), std::vector<std::string>{""});
  EXPECT_TRUE(csv_cells("a,\"b").empty());
}

TEST(Text, TextsGoOnInTheNextLine) {
  const TextBlock block{.title = "t", .rows = {{"key", "a few words that are too long for the line"}, {"k", "short"}}};
  EXPECT_EQ(render({block}, 36),
            "t\n"
            "  key  a few words that are too long\n"
            "       for the line\n"
            "  k    short\n");
  EXPECT_EQ(render({{"", {{"a name", "and /a/very/long/path"}}, ""}}, 20),
            "a name\n      and\n      /a/very/long/path\n");
  // and moves to a line of its own if too little room is left on the current line
  EXPECT_EQ(render({{"", {{"a long name", "and its value, a text"}}, ""}}, 30),
            "a long name\n"
            "      and its value, a text\n");
}

}  // namespace
}  // namespace trivet
