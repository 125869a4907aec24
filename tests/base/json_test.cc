#include "base/json.h"

#include <gtest/gtest.h>
#include <string>

#include "base/check.h"

namespace trivet::test {
namespace {

std::string nested(int levels) {
  std::string text;
  for (int i = 0; i < levels; ++i) text += R"({"a": 1, "b": )";
  return text + "0" + std::string(static_cast<size_t>(levels), '}');
}

// The JSON library's own parser would overflow the stack.
TEST(ParseJson, RefusesDeepNesting) {
  EXPECT_THROW(parse_json<nlohmann::ordered_json>(nested(100'000)), DataError);
  EXPECT_THROW(parse_json<nlohmann::ordered_json>(nested(501)), DataError);
  EXPECT_TRUE(parse_json<nlohmann::ordered_json>(nested(501), BadJson::discarded).is_discarded());
  EXPECT_EQ(parse_json<nlohmann::ordered_json>(nested(500))["b"]["a"], 1);
  EXPECT_EQ(parse_json(nested(100'000))["b"]["a"], 1);
}

TEST(ParseJson, CountsNoBracketsInStrings) {
  const std::string text = std::string(1000, '[') + R"(\"[\\)";
  EXPECT_EQ(parse_json("\"" + text + "\"").get<std::string>(), std::string(1000, '[') + "\"[\\");
}

}  // namespace
}  // namespace trivet::test
