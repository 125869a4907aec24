#include "docs/course/exercises/fp8_rounding.h"

#include "docs/course/exercises/support/testing.h"
#include "kernels/base/fp8.h"

namespace trivet::exercise {
namespace {

void expect_engines(float x, const char* what) {
  if (testing::Test::HasFailure()) return;  // one message is enough
  for (const float signed_x : {x, -x}) {
    const float expected = E4m3::decode(E4m3::encode(signed_x)), found = round_to_e4m3(signed_x);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(found)) << what << ": " << signed_x << " becomes " << found;
    } else {
      ASSERT_EQ(found, expected) << what << ": " << signed_x;
    }
  }
}

TEST(fp8_rounding, is_the_engines) {
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float low = E4m3::decode(code), high = E4m3::decode(static_cast<uint8_t>(code + 1)), tie = (low + high) / 2;
    expect_engines(low, "a number of the format");
    expect_engines(low + (high - low) / 5, "between two numbers");
    expect_engines(std::nextafter(tie, 0.0f), "just below a tie");
    expect_engines(tie, "a tie");
    expect_engines(std::nextafter(tie, 1e3f), "just above a tie");
  }
}

TEST(fp8_rounding, saturates_what_is_finite_only) {
  for (const float x : {448.0f, 449.0f, 464.0f, 1e30f}) expect_engines(x, "large");
  expect_engines(std::numeric_limits<float>::infinity(), "infinity");
  expect_engines(std::numeric_limits<float>::quiet_NaN(), "NaN");
}

}  // namespace
}  // namespace trivet::exercise
