#include "engine/config/fields.h"

#include <gtest/gtest.h>
#include <set>

#include "base/scalar.h"
#include "engine/config/load.h"

namespace trivet {
namespace {

TEST(Scalar, IntegersAreExactAndWhole) {
  EXPECT_EQ(parse_integer("0"), 0);
  EXPECT_EQ(parse_integer("-12"), -12);
  EXPECT_EQ(parse_integer("+7"), 7);
  EXPECT_EQ(parse_integer("40_000_000"), 40'000'000);
  EXPECT_EQ(parse_integer("1e9"), 1'000'000'000);
  EXPECT_EQ(parse_integer("1.5e+6"), 1'500'000);
  EXPECT_EQ(parse_integer("1200e-2"), 12);
  EXPECT_EQ(parse_integer("4.0"), 4);
  EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);  // a double could not hold it
  EXPECT_EQ(parse_integer("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(parse_integer("9007199254740993e0"), 9007199254740993);
  EXPECT_EQ(parse_integer("0e999"), 0);
  for (const char* text : {"",
                           "-",
                           "+",
                           "e3",
                           "1.5",
                           "15e-1",
                           "1e",
                           "1e+-3",
                           "010",
                           "0x10",
                           "9223372036854775808",
                           "1e19",
                           "1e999",
                           "1e99999999999",
                           "_1",
                           "1_",
                           "1__0",
                           "1 ",
                           " 1",
                           "+-1",
                           "nan",
                           "one"})
    EXPECT_EQ(parse_integer(text), std::nullopt) << text;
}

TEST(Scalar, NumbersAreFinite) {
  EXPECT_EQ(parse_number("3e-4"), 3e-4);
  EXPECT_EQ(parse_number("+.5"), 0.5);
  EXPECT_EQ(parse_number("1_000.25"), 1000.25);
  EXPECT_EQ(parse_number("7"), 7.0);
  for (const char* text : {"", "nan", ".nan", "inf", "-inf", ".inf", "1e999", "1,5", "0x1p3", "1e-3x", "1._5", "--1"})
    EXPECT_EQ(parse_number(text), std::nullopt) << text;
}

TEST(Fields, CoverEveryMemberOfConfig) {
  // A member without a row in the table would leave a hole between its neighbours.
  Config config;
  const auto* const base = reinterpret_cast<const char*>(&config);
  size_t end = 0;
  for (const Field& field : fields()) {
    const auto begin = static_cast<size_t>(static_cast<const char*>(field.at(config)) - base);
    size_t next = end;
    while (next % field.alignment != 0) ++next;
    if (begin != next)  // the next section's struct may be aligned more coarsely than its first member
      while (next % alignof(int64_t) != 0) ++next;
    EXPECT_EQ(begin, next) << "before " << field.name << " (or the table is in another order than config.h)";
    end = begin + field.size;
  }
  while (end % alignof(ToolValues) != 0) ++end;
  EXPECT_EQ(end + sizeof(ToolValues), sizeof(Config)) << "after " << fields().back().name;
}

TEST(Fields, HaveNamesOfTheirOwnAndDefaultsThatPass) {
  std::set<std::string_view> names;
  const Config defaults;
  for (const Field& field : fields()) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_FALSE(field.about.empty()) << field.name;
    EXPECT_EQ(check_field(field, defaults).has_value(), field.required) << field.name;
    EXPECT_EQ(find_field(field.name), &field);
  }
  EXPECT_EQ(find_field("model.nothing"), nullptr);
}

TEST(Fields, PrintWhatTheyReadBack) {
  Config config;
  config.optimizer.lr = 0.1 + 0.2;
  config.optimizer.weight_decay = 5e-324;
  config.data.seed = INT64_MAX;
  config.data.path = "a \"b\" \\ c";
  config.model.vocab_size = 50257;
  Config copy;
  for (const Field& field : fields()) {
    const std::string text = format_field(field, config);
    const bool quoted = text.starts_with('"');
    if (quoted || field.required) continue;  // load_test covers YAML's quotes
    EXPECT_EQ(parse_field(field, {.text = text}, copy), std::nullopt) << field.name << " " << text;
    EXPECT_EQ(format_field(field, copy), text);
  }
  EXPECT_EQ(copy.optimizer.lr, 0.1 + 0.2);
  EXPECT_NE(to_yaml(config), to_yaml(copy));
  copy.data.path = config.data.path;
  EXPECT_EQ(to_yaml(config), to_yaml(copy));
}

TEST(Fields, LeaveTheValueAloneWhenItDoesNotFit) {
  Config config;
  const Field& field = *find_field("model.hidden_dropout");
  EXPECT_EQ(parse_field(field, {.text = "1"}, config), "found 1, expected a number from 0 to 0.999");
  EXPECT_EQ(parse_field(field, {.text = "much"}, config), "found \"much\", expected a number from 0 to 0.999");
  EXPECT_EQ(config.model.hidden_dropout, 0);
}

// A value that is used in fp32 must not overflow to infinity there.
TEST(Fields, NumbersAreFiniteInFp32) {
  for (const Field& field : fields()) {
    if (field.noun != "a number" && field.name != "data.split") continue;
    for (const char* text : {"1e39", "1e308", "1e309", "inf", "nan", "-1e39"}) {
      Config config;
      EXPECT_NE(parse_field(field, {.text = text}, config).value_or("").find("expected "), std::string::npos)
          << field.name << "=" << text;
    }
  }
  Config config;
  EXPECT_EQ(parse_field(*find_field("optimizer.lr"), {.text = "1e39"}, config),
            "found 1e+39, expected a number above 0, which fp32 can hold");
}

TEST(Fields, NearestIsTheLikelyMisspelling) {
  const std::vector<std::string_view> names = {"num_layers", "hidden_size", "lr"};
  EXPECT_EQ(nearest("num_layer", names), "num_layers");
  EXPECT_EQ(nearest("hiden_size", names), "hidden_size");
  EXPECT_EQ(nearest("zzzzzzzz", names), "");
  EXPECT_EQ(nearest(std::string(1'000'000, 'x'), names), "");
}

}  // namespace
}  // namespace trivet
