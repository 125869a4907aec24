#include "engine/data/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/host_memory.h"

namespace trivet {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersion = 1;
struct [[gnu::packed]] Header {
  std::array<char, 9> magic{};
  uint64_t version;
  uint8_t type;
  uint64_t sequences, starts;  // lengths of the arrays that follow
};
constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(Header));
static_assert(kHeaderBytes == 34);
// GptDataset numbers sequences in 32 bits.
constexpr uint64_t kMaxSequences = std::numeric_limits<uint32_t>::max();

// Calls f(T{}) with the tokens' C++ type T.
template <class F>
auto with_type(TokenType type, F&& f) {
  switch (type) {
    case TokenType::u8: return f(uint8_t{});
    case TokenType::u16: return f(uint16_t{});
    case TokenType::i32: return f(int32_t{});
  }
  fail("unknown token type");
}

// Calls visit(i, value) for each of the `count` values of type T at byte `offset` of the file, reading in blocks.
template <typename T, typename Visit>
void for_each_in(const InputFile& file, int64_t offset, int64_t count, Visit visit) {
  std::array<T, 8192> block;
  for (int64_t i = 0; i < count;) {
    const auto part = std::span(block).first(static_cast<size_t>(std::min<int64_t>(count - i, block.size())));
    file.read_at(offset + i * static_cast<int64_t>(sizeof(T)), std::as_writable_bytes(part));
    for (const T value : part) visit(i++, value);
  }
}

[[noreturn]] void reject(const InputFile& file, std::string_view field, const auto& found, const auto& expected) {
  throw DataError(fmt::format("{}: {} is {}, expected {}", file.path(), field, found, expected));
}

std::string hex(std::string_view bytes) {
  return fmt::format("{:02x}", fmt::join(std::vector<uint8_t>(bytes.begin(), bytes.end()), " "));
}

// Reads the header and checks that its counts fit the size of the file, so that no sum of them overflows.
Header read_header(const InputFile& idx) {
  if (idx.size() < kHeaderBytes) reject(idx, "file size", idx.size(), fmt::format("at least {} bytes", kHeaderBytes));
  Header header;
  idx.read_at(0, std::as_writable_bytes(std::span(&header, 1)));
  const std::string_view magic(header.magic.data(), header.magic.size());
  const uint64_t version = header.version, sequences = header.sequences, starts = header.starts;
  if (magic != kMagic) reject(idx, "magic", hex(magic), hex(kMagic) + " (MMIDIDX)");
  if (version != kVersion) reject(idx, "version", version, kVersion);
  const auto type = static_cast<TokenType>(header.type);
  if (type != TokenType::u8 && type != TokenType::u16 && type != TokenType::i32)
    reject(idx, "token type code", int{header.type}, "1 (uint8), 4 (int32) or 8 (uint16)");
  const auto room = static_cast<uint64_t>(idx.size() - kHeaderBytes);
  if (sequences > room / 12)
    reject(idx, "sequence count", sequences, fmt::format("at most {} in {} bytes", room / 12, idx.size()));
  if (sequences > kMaxSequences) reject(idx, "sequence count", sequences, fmt::format("at most {}", kMaxSequences));
  const uint64_t least = sequences > 0 ? 2 : 1;
  if (starts < least || starts > room / 8)
    reject(idx, "document index length", starts, fmt::format("{} to {} in {} bytes", least, room / 8, idx.size()));
  const uint64_t text_only = 12 * sequences + 8 * starts;
  if (room != text_only && room != text_only + sequences)
    reject(idx, "file size", idx.size(),
           fmt::format("{} bytes for {} sequences and a document index of {} (or {} with modes)",
                       kHeaderBytes + text_only, sequences, starts, kHeaderBytes + text_only + sequences));
  return header;
}

}  // namespace

int64_t size_of(TokenType type) {
  return with_type(type, [](auto token) { return int64_t{sizeof token}; });
}

const char* name_of(TokenType type) {
  return type == TokenType::u8 ? "uint8" : type == TokenType::u16 ? "uint16" : "int32";
}

TokenType token_type_for(int64_t vocab_size) { return vocab_size < 65500 ? TokenType::u16 : TokenType::i32; }

// ---- reading

IndexedDataset::IndexedDataset(const std::string& prefix) : prefix_(prefix), bin_(prefix + ".bin") {
  read_index(InputFile(prefix + ".idx"));
}

void IndexedDataset::read_index(const InputFile& idx) {
  const MemoryPurpose purpose("the index", idx.path());
  const Header header = read_header(idx);
  type_ = static_cast<TokenType>(header.type);
  const auto count = static_cast<int64_t>(header.sequences), starts = static_cast<int64_t>(header.starts);
  documents_ = starts - 1;
  begin_.reserve(header.sequences + 1);
  begin_.push_back(0);
  const int64_t pointers = kHeaderBytes + 4 * count, index = pointers + 8 * count, modes = index + 8 * starts;
  for_each_in<int32_t>(idx, kHeaderBytes, count, [&](int64_t i, int32_t length) {
    if (length < 0) reject(idx, fmt::format("length of sequence {}", i), length, "0 or more");
    begin_.push_back(begin_.back() + length);  // at most 2^32 terms below 2^31
  });
  for_each_in<int64_t>(idx, pointers, count, [&](int64_t i, int64_t pointer) {
    if (const int64_t expected = begin(i) * size_of(type_); pointer != expected)
      reject(idx, fmt::format("byte offset of sequence {}", i), pointer,
             fmt::format("{}, the end of the sequences before it{}", expected,
                         pointer < 0 ? " (old Megatron versions overflowed 32 bits here: prepare it again)" : ""));
  });
  int64_t previous = 0;
  for_each_in<int64_t>(idx, index, starts, [&](int64_t i, int64_t start) {
    const int64_t least = i + 1 == starts ? count : previous, most = i == 0 ? 0 : count;
    if (start < least || start > most)
      reject(idx, fmt::format("document index entry {} of {}", i, starts), start,
             least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most));
    previous = start;
  });
  for_each_in<int8_t>(idx, modes, idx.size() - modes, [&](int64_t i, int8_t mode) {
    if (mode != 0)
      reject(idx, fmt::format("mode of sequence {}", i), int{mode}, "0: multimodal datasets are not supported");
  });
  if (const int64_t bytes = tokens() * size_of(type_); bin_.size() != bytes)
    reject(bin_, "file size", bin_.size(),
           fmt::format("{} bytes for the {} {} tokens of {}", bytes, tokens(), name_of(type_), idx.path()));
}

void IndexedDataset::read(int64_t first, std::span<int32_t> tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  if (first < 0 || first > this->tokens() - count) [[unlikely]]
    fail(fmt::format("{}: tokens [{}, {}+{}) of {}", prefix_, first, first, count, this->tokens()));
  with_type(type_, [&]<class T>(T) {
    auto to = tokens.begin();
    for_each_in<T>(bin_, first * size_of(type_), count, [&](int64_t, T token) { *to++ = token; });
  });
}

// ---- writing

// In .idx the lengths directly follow the header, so they are written as they arrive.
IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, TokenType type, int64_t documents, int64_t tokens)
    : prefix_(prefix),
      type_(type),
      bin_(prefix + ".bin", prefix + ".bin.tmp", tokens * size_of(type)),
      idx_(prefix + ".idx", prefix + ".idx.tmp", documents > 0 ? kHeaderBytes + 4 * documents : 0),
      documents_(documents),
      tokens_(tokens) {
  const Header header{};  // a placeholder: only sync() knows the counts
  if (documents == 0) idx_.write(&header, sizeof header);
  else hash_.add(InputFile(bin_.temporary()));
}

bool IndexedDatasetWriter::is_saved(const std::string& prefix, TokenType type, int64_t documents, int64_t tokens) {
  const auto has = [&](const char* suffix, int64_t bytes) {
    return file_exists(prefix + suffix) && InputFile(prefix + suffix).size() >= bytes;
  };
  return has(".bin.tmp", tokens * size_of(type)) && has(".idx.tmp", kHeaderBytes + 4 * documents);
}

void IndexedDatasetWriter::save() {
  check(length_ == 0, "saved within a document");
  bin_.keep();
  idx_.keep();
}

void IndexedDatasetWriter::add(std::span<const int32_t> tokens) {
  if (synced_) fail(fmt::format("{}: a document after the end", prefix_));
  length_ += static_cast<int64_t>(tokens.size());
  if (length_ > std::numeric_limits<int32_t>::max())
    throw DataError(fmt::format("{}: document {} has {} tokens or more, expected at most {}: split it", prefix_,
                                documents(), length_, std::numeric_limits<int32_t>::max()));
  with_type(type_, [&]<class T>(T) {
    for (const int32_t token : tokens)
      if (token < 0 || token > std::numeric_limits<T>::max()) [[unlikely]]
        fail(fmt::format("token id {} does not fit the {} tokens of {}", token, name_of(type_), prefix_));
    const std::vector<T> stored(tokens.begin(), tokens.end());
    bin_.write(stored.data(), stored.size() * sizeof(T));
    hash_.add(stored.data(), stored.size() * sizeof(T));
  });
  tokens_ += static_cast<int64_t>(tokens.size());
}

void IndexedDatasetWriter::end_document() {
  if (synced_) fail(fmt::format("{}: a document after the end", prefix_));
  const auto length = static_cast<int32_t>(std::exchange(length_, 0));
  idx_.write(&length, sizeof length);
  ++documents_;
}

void IndexedDatasetWriter::sync() {
  if (std::exchange(synced_, true)) return;
  if (length_ > 0) fail(fmt::format("{}: its last document has no end", prefix_));
  const auto count = static_cast<uint64_t>(documents_);
  Header header{.version = kVersion, .type = static_cast<uint8_t>(type_), .sequences = count, .starts = count + 1};
  std::ranges::copy(kMagic, header.magic.begin());
  idx_.sync();
  const InputFile lengths(idx_.temporary());
  int64_t pointer = 0;
  for_each_in<int32_t>(lengths, kHeaderBytes, documents_, [&](int64_t, int32_t length) {
    idx_.write(&pointer, sizeof pointer);
    pointer += length * size_of(type_);
  });
  for (uint64_t start = 0; start <= count; ++start) idx_.write(&start, sizeof start);
  idx_.overwrite(0, &header, sizeof header);
  bin_.sync();
  idx_.sync();
}

void IndexedDatasetWriter::finish() {
  sync();
  bin_.commit();
  idx_.commit();
}

}  // namespace trivet
