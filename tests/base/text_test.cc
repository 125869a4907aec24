#include "base/text.h"

#include <cmath>
#include <gtest/gtest.h>

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

TEST(Text, ATableBeginsWithTheNamesOfItsColumns) {
  TextBlock table{.title = ""};
  table.column("name", 'l');
  table.column("n", 'r');
  table.rows.push_back({"a", "12"});
  EXPECT_EQ(render({table}),
            "name   n\n"
            "a     12\n");
}

}  // namespace
}  // namespace trivet
