#include "engine/checkpoint/safetensors.h"

#include <cstring>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>

#include "kernels/base/dtype.h"
#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

// A file with this header, not padded, and `data_bytes` bytes of data.
std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\0');
}

SafeTensors parse(const std::string& file) {
  return parse_safetensors(file, static_cast<int64_t>(file.size()), "x.safetensors");
}

// The message with which a file is refused; "" if the file is accepted.
std::string refusal(const std::string& file) {
  try {
    parse(file);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

std::string one_tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"({{"w":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
}

// The example in the format's description: w, F32 [2, 2], is 1 2 3 4.
const std::string kGolden = [] {
  std::string bytes = file_of(one_tensor("F32", "[2,2]", "[0,16]") + std::string(7, ' '), 16);
  const float values[] = {1, 2, 3, 4};
  std::memcpy(bytes.data() + 72, values, 16);
  return bytes;
}();

TEST(SafeTensors, TheGoldenFileIsReadAndWrittenByteByByte) {
  // given: the 88 bytes
  ASSERT_EQ(kGolden.size(), 88u);
  ASSERT_EQ(kGolden.substr(0, 9), std::string("\x40\0\0\0\0\0\0\0{", 9));
  const TempDir dir;
  write_text(dir / "golden", kGolden);

  // when: they are read
  const InputFile file(dir / "golden");
  const SafeTensors content = read_safetensors(file);
  std::vector<float> values(4);
  read_as_float(file, content.data_offset, content.tensors.at(0).dtype, values);

  // then: the tensor is as described, and its header is written with the same bytes
  EXPECT_EQ(content.tensors, (std::vector<SafeTensor>{{"w", "F32", {2, 2}, 0, 16}}));
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(safetensors_header(content), kGolden.substr(0, 72));
}

TEST(SafeTensors, HalvesAreReadAsTheNumbersTheyAre) {
  const TempDir dir;
  const uint16_t brain[] = {0x3f80, 0xc000, 0x0000, 0x7f80}, half[] = {0x3c00, 0xc000, 0x0001, 0x7c00};
  std::string bytes = file_of(R"({"b":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]},)"
                              R"("h":{"dtype":"F16","shape":[4],"data_offsets":[8,16]}})",
                              16);
  std::memcpy(bytes.data() + bytes.size() - 16, brain, 8);
  std::memcpy(bytes.data() + bytes.size() - 8, half, 8);
  write_text(dir / "halves", bytes);
  const InputFile file(dir / "halves");
  const SafeTensors content = read_safetensors(file);
  std::vector<float> b(4), h(4);
  read_as_float(file, content.data_offset + content.tensors.at(0).begin, "BF16", b);
  read_as_float(file, content.data_offset + content.tensors.at(1).begin, "F16", h);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(b, (std::vector<float>{1, -2, 0, infinity}));
  EXPECT_EQ(h, (std::vector<float>{1, -2, 0x1p-24f, infinity}));  // the third is the smallest subnormal
}

TEST(SafeTensors, ScalarsEmptyTensorsAndMetadataAreAllowed) {
  const SafeTensors content =
      parse(file_of(R"({"__metadata__":{"format":"pt","ü":"{}"},"empty":{"dtype":"I64","shape":[3,0],)"
                    R"("data_offsets":[0,0]},"scalar":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}   )",
                    1));
  EXPECT_EQ(content.tensors.size(), 2u);
  EXPECT_EQ(content.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"ü", "{}"}}));
  EXPECT_EQ(parse(file_of("{}", 0)).data_bytes(), 0);
  // Whatever names and strings contain, reading returns what was written.
  const std::string again = safetensors_header(content) + std::string(1, '\0');
  EXPECT_EQ(parse(again).tensors, content.tensors);
  EXPECT_EQ(parse(again).metadata, content.metadata);
}

struct Hostile {
  const char* name;
  std::string file;
  const char* message;  // a part of the expected message
};

class SafeTensorsHostile : public testing::TestWithParam<Hostile> {};

TEST_P(SafeTensorsHostile, IsRefusedWithTheReason) {
  const std::string text = refusal(GetParam().file);
  EXPECT_NE(text.find(GetParam().message), std::string::npos) << text;
  EXPECT_TRUE(text.starts_with("x.safetensors: ")) << text;
  EXPECT_LT(text.size(), 1000u);
}

std::vector<Hostile> hostile_files() {
  const auto with_shape = [](const char* shape, const char* offsets) { return one_tensor("F32", shape, offsets); };
  std::string many = "{";  // tensors that all share the same bytes
  for (int i = 0; i < 20'000; ++i)
    many += fmt::format(R"({}"t{}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", i ? "," : "", i);
  const std::string deep = std::string(R"({"w":)") + std::string(5000, '[');
  return {
      {"empty_file", "", "has 0 bytes, expected at least 8"},
      {"only_a_length", kGolden.substr(0, 8), "the file is truncated"},
      {"huge_length", std::string(8, '\xff') + "{}", "expected at most 100000000"},
      {"length_above_the_limit", std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + "{}", "found a header of 100000001"},
      {"no_header", std::string("\x3c\0\0\0\0\0\0\0", 8), "the file is truncated"},
      {"bad_utf8", file_of("\xff", 0), "does not begin with '{'"},
      {"bad_utf8_in_a_name", file_of("{\"\xff\":{}}", 0), "not valid JSON"},
      {"only_a_brace", file_of("{", 0), "not valid JSON"},
      {"empty_header", file_of("", 0), "does not begin with '{'"},
      {"leading_space", file_of(" {}", 0), "does not begin with '{'"},
      {"text_behind", file_of("{}x", 0), "not valid JSON"},
      {"zeros_behind", file_of(std::string("{}\0\0", 4), 0), "not valid JSON"},
      {"trailing_bytes", kGolden + "xx", "has 90 bytes, expected 88"},
      {"missing_bytes", kGolden.substr(0, 86), "has 86 bytes, expected 88"},
      {"too_few_for_the_shape", file_of(with_shape("[2,2]", "[0,4]"), 4), "hold 4 bytes, but F32 of shape [2, 2]"},
      {"overflow_of_the_shape", file_of(with_shape("[2,18446744073709551614]", "[0,16]"), 16), "shape: found 1844674"},
      {"overflow_of_a_signed_shape", file_of(with_shape("[2,9223372036854775807]", "[0,16]"), 16),
       "shape: found 92233"},
      {"overflow_of_the_product", file_of(with_shape("[281474976710655,281474976710655]", "[0,16]"), 16),
       "too many elements"},
      {"negative_dimension", file_of(with_shape("[-1]", "[0,4]"), 4), "shape: found -1"},
      {"fractional_dimension", file_of(with_shape("[1.0]", "[0,4]"), 4), "shape: found 1.0"},
      {"number_too_large_for_a_double", file_of(with_shape("[1e999]", "[0,4]"), 4), "not valid JSON"},
      {"begin_behind_end", file_of(with_shape("[1]", "[8,4]"), 8), "hold -4 bytes"},
      {"one_offset", file_of(with_shape("[1]", "[4]"), 4), "found 1 numbers, expected 2"},
      {"hole", file_of(with_shape("[1]", "[4,8]"), 8), "begins at byte 4, expected 0"},
      {"overlap",
       file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
               6),
       "begins at byte 2, expected 4"},
      {"many_overlaps", file_of(many + "}", 4), "begins at byte 0, expected 4"},
      {"part_of_a_byte", file_of(one_tensor("F4", "[3]", "[0,1]"), 1), "needs 12 bits"},
      {"part_of_a_byte_rounded_up", file_of(one_tensor("F6_E2M3", "[3]", "[0,3]"), 3), "needs 18 bits"},
      {"unknown_dtype", file_of(one_tensor("F33", "[1]", "[0,4]"), 4), "dtype: found 'F33'"},
      {"number_for_a_dtype", file_of(R"({"w":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})", 4), "expected a string"},
      {"no_shape", file_of(R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", 4), "found 2 members"},
      {"one_member_too_many", file_of(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1]}})", 4),
       "found 4 members"},
      {"duplicate_tensor",
       file_of(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
               R"("w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
               2),
       "occurs twice"},
      {"duplicate_member", file_of(R"({"w":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1),
       "occurs twice"},
      {"duplicate_by_an_escape",
       file_of("{\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
               "\"\\u0077\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
               0),
       "occurs twice"},
      {"number_in_metadata", file_of(R"({"__metadata__":{"step":3}})", 0), "step: found 3, expected a string"},
      {"list_for_metadata", file_of(R"({"__metadata__":[]})", 0), "expected an object"},
      {"tensor_is_a_list", file_of(R"({"w":[]})", 0), "expected an object"},
      {"nested_too_deep", file_of(deep, 0), "nested more than 8 deep"},
  };
}

INSTANTIATE_TEST_SUITE_P(Files, SafeTensorsHostile, testing::ValuesIn(hostile_files()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace trivet
