#include "engine/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace trivet {
namespace {

constexpr int64_t kLengthBytes = 8, kLargestHeader = 100'000'000;
constexpr int64_t kLargestNumber = (int64_t{1} << 48) - 1;  // limit of the format's JSON schema

// Bits of one element; 0: unknown type.
int bits_of(std::string_view dtype) {
  static const std::map<std::string_view, int> kBits{
      {"F32", 32},    {"BF16", 16},   {"F16", 16},        {"F64", 64},       {"I64", 64},    {"I32", 32},
      {"I16", 16},    {"I8", 8},      {"U64", 64},        {"U32", 32},       {"U16", 16},    {"U8", 8},
      {"BOOL", 8},    {"C64", 64},    {"F8_E4M3", 8},     {"F8_E5M2", 8},    {"F8_E8M0", 8}, {"F4", 4},
      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};
  const auto at = kBits.find(dtype);
  return at == kBits.end() ? 0 : at->second;
}

SafeTensor parse_tensor(const std::string& name, const nlohmann::json& value, const std::string& source) {
  const std::string where = fmt::format("{}: tensor '{}'", source, name.substr(0, 200));
  const JsonReader reader(value, where);
  if (value.size() != 3)
    throw DataError(fmt::format("{}: found {} members, expected dtype, shape and data_offsets", where, value.size()));
  SafeTensor tensor{
      .name = name, .dtype = reader.text("dtype"), .shape = reader.integers("shape", 0, 8, kLargestNumber)};
  const int bits = bits_of(tensor.dtype);
  if (bits == 0) reader.refuse("dtype", "'" + tensor.dtype.substr(0, 40) + "'", "a dtype of safetensors, such as F32");
  // Counts bits: no tensor comes close to 2^63 of them.
  int64_t size = bits;
  for (const int64_t dim : tensor.shape)
    if (__builtin_mul_overflow(size, dim, &size)) reader.refuse("shape", "too many elements", "fewer");
  const std::vector<int64_t> offsets = reader.integers("data_offsets", 2, 2, kLargestNumber);
  tensor.begin = offsets[0], tensor.end = offsets[1];
  if (size % 8 != 0 || tensor.end - tensor.begin != size / 8)
    throw DataError(fmt::format("{}: its data_offsets [{}, {}] hold {} bytes, but {} of shape [{}] needs {} bits",
                                where, tensor.begin, tensor.end, tensor.end - tensor.begin, tensor.dtype,
                                fmt::join(tensor.shape, ", "), size));
  return tensor;
}

int64_t header_length(std::span<const char> bytes, int64_t file_bytes, const std::string& source) {
  if (file_bytes < kLengthBytes || bytes.size() < kLengthBytes)
    throw DataError(fmt::format("{}: has {} bytes, expected at least 8: not a safetensors file", source, file_bytes));
  uint64_t length;
  std::memcpy(&length, bytes.data(), sizeof length);
  static_assert(std::endian::native == std::endian::little);
  if (length > static_cast<uint64_t>(kLargestHeader))
    throw DataError(fmt::format("{}: found a header of {} bytes, expected at most {}: not a safetensors file", source,
                                length, kLargestHeader));
  if (static_cast<int64_t>(length) > file_bytes - kLengthBytes)
    throw DataError(fmt::format("{}: has {} bytes, but its header of {} bytes ends at {}: the file is truncated",
                                source, file_bytes, length, kLengthBytes + static_cast<int64_t>(length)));
  return static_cast<int64_t>(length);
}

float half_to_float(uint16_t bits) {
  const float sign = bits >> 15 ? -1.0f : 1.0f;
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-24f;
  if (exponent == 31) return mantissa ? std::bit_cast<float>(0x7fc00000u) : sign * std::bit_cast<float>(0x7f800000u);
  return sign * std::bit_cast<float>(static_cast<uint32_t>((exponent + 112) << 23 | mantissa << 13));
}

}  // namespace

SafeTensors parse_safetensors(std::span<const char> bytes, int64_t file_bytes, const std::string& source) {
  const int64_t length = header_length(bytes, file_bytes, source);
  check(static_cast<int64_t>(bytes.size()) >= kLengthBytes + length, "a safetensors header was read in part");
  const std::string_view header(bytes.data() + kLengthBytes, static_cast<size_t>(length));
  if (header.empty() || header[0] != '{') throw DataError(source + ": its header does not begin with '{'");
  SafeTensors content{.data_offset = kLengthBytes + length};
  const nlohmann::json json = parse_strict_json(header, source);
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") content.metadata = JsonReader(json, source).texts("__metadata__");
    else content.tensors.push_back(parse_tensor(name, value, source));
  }
  std::sort(content.tensors.begin(), content.tensors.end(), [](const SafeTensor& a, const SafeTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t end = 0;
  for (const SafeTensor& tensor : content.tensors) {
    if (tensor.begin != end)
      throw DataError(fmt::format("{}: tensor '{}' begins at byte {}, expected {}, where the previous one ends", source,
                                  tensor.name.substr(0, 200), tensor.begin, end));
    end = tensor.end;
  }
  if (content.data_offset + end != file_bytes)
    throw DataError(fmt::format("{}: has {} bytes, expected {}: header {} and tensors {}", source, file_bytes,
                                content.data_offset + end, content.data_offset, end));
  return content;
}

SafeTensors read_safetensors(const InputFile& file) {
  std::vector<char> bytes(static_cast<size_t>(std::min(file.size(), kLengthBytes)));
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  const int64_t length = header_length(bytes, file.size(), file.path());
  bytes.resize(static_cast<size_t>(kLengthBytes + length));
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return parse_safetensors(bytes, file.size(), file.path());
}

std::string safetensors_header(const SafeTensors& content) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!content.metadata.empty()) json["__metadata__"] = content.metadata;
  for (const SafeTensor& tensor : content.tensors)
    json[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  std::string header = json.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header;
}

void read_as_float(const InputFile& file, int64_t offset, std::string_view dtype, std::span<float> to) {
  if (dtype == "F32") return file.read_at(offset, std::as_writable_bytes(to));
  check(dtype == "F16" || dtype == "BF16", "a tensor is read as fp32 that is none of F32, F16, BF16");
  std::vector<uint16_t> halves(to.size());
  file.read_at(offset, std::as_writable_bytes(std::span(halves)));
  for (size_t i = 0; i < to.size(); ++i)
    to[i] = dtype == "BF16" ? static_cast<float>(std::bit_cast<bf16>(halves[i])) : half_to_float(halves[i]);
}

bool all_finite(std::span<const float> numbers) {
  uint32_t bad = 0;  // branch-free, as this scans gigabytes
  for (const float x : numbers) bad |= (std::bit_cast<uint32_t>(x) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  return bad == 0;
}

void expect_finite(std::span<const float> numbers, const std::string& where) {
  if (all_finite(numbers)) return;
  const auto bad = std::ranges::find_if_not(numbers, [](float x) { return std::isfinite(x); });
  throw DataError(fmt::format("{}: element {} of {} is {}, expected a finite number: the weights are damaged", where,
                              bad - numbers.begin(), numbers.size(), *bad));
}

void write_floats(OutputFile& file, std::span<const float> numbers, DType dtype, const std::string& name) {
  if (dtype == DType::f32) return file.write(numbers.data(), numbers.size_bytes());
  const std::vector<bf16> halves(numbers.begin(), numbers.end());
  for (size_t i = 0; i < halves.size(); ++i)
    if (!std::isfinite(static_cast<float>(halves[i])) && std::isfinite(numbers[i])) [[unlikely]]
      throw DataError(
          fmt::format("{}: a weight of {} is too large for bf16; expected another --dtype", name, numbers[i]));
  file.write(halves.data(), halves.size() * sizeof(bf16));
}

}  // namespace trivet
