#include "engine/data/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fmt/format.h>
#include <limits>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"

namespace trivet {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersion = 1;
constexpr int64_t kHeaderBytes = 34;
// GptDataset numbers sequences in 32 bits.
constexpr uint64_t kMaxSequences = std::numeric_limits<uint32_t>::max();

// Calls visit(i, value) for an array of `count` T at byte `offset` of the file, a block at a time.
template <typename T, typename Visit>
void for_each_in(const InputFile& file, int64_t offset, int64_t count, Visit visit) {
  std::array<T, 8192> block;
  for (int64_t i = 0; i < count;) {
    const auto part = std::span(block).first(static_cast<size_t>(std::min<int64_t>(count - i, block.size())));
    file.read_at(offset + i * static_cast<int64_t>(sizeof(T)), std::as_writable_bytes(part));
    for (const T value : part) visit(i++, value);
  }
}

template <typename T>
void widen(const InputFile& file, int64_t first, std::span<int32_t> tokens) {
  auto to = tokens.begin();
  for_each_in<T>(file, first * static_cast<int64_t>(sizeof(T)), static_cast<int64_t>(tokens.size()),
                 [&](int64_t, T token) { *to++ = static_cast<int32_t>(token); });
}

// Calls put(data, bytes) with the tokens as T, a block at a time.
template <typename T, typename Put>
void narrow(std::span<const int32_t> tokens, Put put) {
  std::array<T, 4096> block;
  while (!tokens.empty()) {
    const auto part = tokens.first(std::min(tokens.size(), block.size()));
    std::transform(part.begin(), part.end(), block.begin(), [](int32_t token) { return static_cast<T>(token); });
    put(block.data(), part.size() * sizeof(T));
    tokens = tokens.subspan(part.size());
  }
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{}{:02x}", text.empty() ? "" : " ", static_cast<uint8_t>(byte));
  return text;
}

int64_t largest(TokenType type) {
  switch (type) {
    case TokenType::u8: return std::numeric_limits<uint8_t>::max();
    case TokenType::u16: return std::numeric_limits<uint16_t>::max();
    case TokenType::i32: return std::numeric_limits<int32_t>::max();
  }
  fail("unknown token type");
}

}  // namespace

int64_t size_of(TokenType type) {
  switch (type) {
    case TokenType::u8: return 1;
    case TokenType::u16: return 2;
    case TokenType::i32: return 4;
  }
  fail("unknown token type");
}

const char* name_of(TokenType type) {
  switch (type) {
    case TokenType::u8: return "uint8";
    case TokenType::u16: return "uint16";
    case TokenType::i32: return "int32";
  }
  fail("unknown token type");
}

TokenType token_type_for(int64_t vocab_size) { return vocab_size < 65500 ? TokenType::u16 : TokenType::i32; }

// ---- reading

IndexedDataset::IndexedDataset(const std::string& prefix) : prefix_(prefix), bin_(prefix + ".bin") {
  read_index(InputFile(prefix + ".idx"));
}

void IndexedDataset::read_index(const InputFile& idx) {
  const auto reject = [&](std::string_view field, const auto& found, const auto& expected) {
    throw DataError(fmt::format("{}: {} is {}, expected {}", idx.path(), field, found, expected));
  };

  if (idx.size() < kHeaderBytes) reject("file size", idx.size(), fmt::format("at least {} bytes", kHeaderBytes));
  std::array<std::byte, kHeaderBytes> header;
  idx.read_at(0, header);
  const auto load = [&]<typename T>(size_t offset, T value) {
    std::memcpy(&value, header.data() + offset, sizeof(T));
    return value;
  };
  const std::string_view magic(reinterpret_cast<const char*>(header.data()), kMagic.size());
  if (magic != kMagic) reject("magic", hex(magic), hex(kMagic) + " (MMIDIDX)");
  const uint64_t version = load(9, uint64_t{});
  if (version != kVersion) reject("version", version, kVersion);
  const uint8_t code = load(17, uint8_t{});
  type_ = static_cast<TokenType>(code);
  if (type_ != TokenType::u8 && type_ != TokenType::u16 && type_ != TokenType::i32)
    reject("token type code", code, "1 (uint8), 4 (int32) or 8 (uint16)");
  const uint64_t sequences = load(18, uint64_t{}), starts = load(26, uint64_t{});
  // Bounding both first keeps the sums below from overflowing.
  const auto room = static_cast<uint64_t>(idx.size() - kHeaderBytes);
  if (sequences > room / 12)
    reject("sequence count", sequences, fmt::format("at most {} in {} bytes", room / 12, idx.size()));
  if (sequences > kMaxSequences) reject("sequence count", sequences, fmt::format("at most {}", kMaxSequences));
  const uint64_t least_starts = sequences > 0 ? 2 : 1;
  if (starts < least_starts || starts > room / 8)
    reject("document index length", starts, fmt::format("{} to {} in {} bytes", least_starts, room / 8, idx.size()));
  const auto count = static_cast<int64_t>(sequences), index_length = static_cast<int64_t>(starts);
  const int64_t text_only = kHeaderBytes + 12 * count + 8 * index_length;
  if (idx.size() != text_only && idx.size() != text_only + count)
    reject("file size", idx.size(),
           fmt::format("{} bytes for {} sequences and a document index of {} (or {} with modes)", text_only, count,
                       index_length, text_only + count));

  const int64_t pointers = kHeaderBytes + 4 * count, index = pointers + 8 * count, modes = index + 8 * index_length;
  begin_.reserve(sequences + 1);
  begin_.push_back(0);
  for_each_in<int32_t>(idx, kHeaderBytes, count, [&](int64_t i, int32_t length) {
    if (length < 0) reject(fmt::format("length of sequence {}", i), length, "0 or more");
    begin_.push_back(begin_.back() + length);  // at most 2^32 terms below 2^31
  });
  for_each_in<int64_t>(idx, pointers, count, [&](int64_t i, int64_t pointer) {
    if (pointer != begin(i) * size_of(type_))
      reject(fmt::format("byte offset of sequence {}", i), pointer,
             fmt::format("{}, the end of the sequences before it{}", begin(i) * size_of(type_),
                         pointer < 0 ? " (old Megatron versions overflowed 32 bits here: prepare it again)" : ""));
  });
  int64_t previous = 0;
  for_each_in<int64_t>(idx, index, index_length, [&](int64_t i, int64_t start) {
    const int64_t least = i + 1 == index_length ? count : previous, most = i == 0 ? 0 : count;
    if (start < least || start > most)
      reject(fmt::format("document index entry {} of {}", i, index_length), start,
             least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most));
    previous = start;
  });
  documents_ = index_length - 1;
  if (idx.size() != text_only) {
    for_each_in<int8_t>(idx, modes, count, [&](int64_t i, int8_t mode) {
      if (mode != 0)
        reject(fmt::format("mode of sequence {}", i), int{mode}, "0: multimodal datasets are not supported");
    });
  }
  if (bin_.size() != tokens() * size_of(type_))
    throw DataError(fmt::format("{}: file size is {}, expected {} bytes for the {} {} tokens of {}", bin_.path(),
                                bin_.size(), tokens() * size_of(type_), tokens(), name_of(type_), idx.path()));
}

void IndexedDataset::read(int64_t first, std::span<int32_t> tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  if (first < 0 || first > this->tokens() - count) [[unlikely]]
    fail(fmt::format("{}: tokens [{}, {}+{}) of {}", prefix_, first, first, count, this->tokens()));
  switch (type_) {
    case TokenType::u8: return widen<uint8_t>(bin_, first, tokens);
    case TokenType::u16: return widen<uint16_t>(bin_, first, tokens);
    case TokenType::i32: return bin_.read_at(first * 4, std::as_writable_bytes(tokens));
  }
}

// ---- writing

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, TokenType type)
    : prefix_(prefix), type_(type), bin_(prefix + ".bin"), idx_(prefix + ".idx") {}

void IndexedDatasetWriter::add_document(std::span<const int32_t> tokens) {
  if (synced_) fail(fmt::format("{}: a document after the end", prefix_));
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    throw DataError(fmt::format("{}: document {} has {} tokens, expected at most {} (cut it)", prefix_, documents(),
                                tokens.size(), std::numeric_limits<int32_t>::max()));
  for (const int32_t token : tokens)
    if (token < 0 || token > largest(type_)) [[unlikely]]
      fail(fmt::format("token id {} does not fit the {} tokens of {}", token, name_of(type_), prefix_));
  const auto put = [this](const void* data, size_t bytes) {
    bin_.write(data, bytes);
    hash_.add(data, bytes);
  };
  switch (type_) {
    case TokenType::u8: narrow<uint8_t>(tokens, put); break;
    case TokenType::u16: narrow<uint16_t>(tokens, put); break;
    case TokenType::i32: put(tokens.data(), tokens.size_bytes()); break;
  }
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  tokens_ += static_cast<int64_t>(tokens.size());
}

void IndexedDatasetWriter::sync() {
  if (std::exchange(synced_, true)) return;
  const auto put = [this](auto value) { idx_.write(&value, sizeof(value)); };
  const auto count = static_cast<uint64_t>(lengths_.size());
  idx_.write(kMagic);
  put(kVersion);
  put(static_cast<uint8_t>(type_));
  put(count);
  put(count + 1);
  idx_.write(lengths_.data(), lengths_.size() * sizeof(int32_t));
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    put(pointer);
    pointer += length * size_of(type_);
  }
  for (uint64_t start = 0; start <= count; ++start) put(start);
  bin_.sync();
  idx_.sync();
}

void IndexedDatasetWriter::finish() {
  sync();
  bin_.commit();
  idx_.commit();
}

}  // namespace trivet
