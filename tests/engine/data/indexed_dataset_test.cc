#include "engine/data/indexed_dataset.h"

#include <cstring>
#include <limits>
#include <random>
#include <signal.h>
#include <sys/resource.h>

#include "tests/engine/data/support.h"
#include "tests/support/training.h"

namespace trivet {
namespace {

const Documents kDocuments = {{1, 2, 3}, {4, 5}};

std::string from_hex(std::string_view hex) {
  std::string bytes, digits;
  for (const char c : hex) {
    if (c != ' ') digits += c;
    if (digits.size() == 2) bytes += static_cast<char>(std::stoi(digits, nullptr, 16)), digits.clear();
  }
  return bytes;
}

// The .idx of kDocuments as Megatron writes it.
const std::string kGoldenIndex = from_hex(
    "4d4d49444944580000 0100000000000000 08 0200000000000000 0300000000000000 03000000 02000000"
    "0000000000000000 0600000000000000 0000000000000000 0100000000000000 0200000000000000");
const std::string kGoldenTokens = from_hex("01000200030004000500");

template <typename T>
std::string with(std::string bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  return bytes;
}

// Reads everything that a dataset offers.
Documents read_all(const IndexedDataset& dataset) {
  Documents documents;
  for (int64_t i = 0; i < dataset.sequences(); ++i) {
    documents.emplace_back(static_cast<size_t>(dataset.length(i)));
    dataset.read(dataset.begin(i), documents.back());
  }
  return documents;
}

TEST(IndexedDataset, WritesMegatronsBytes) {
  const TempDir directory;
  write_dataset(directory / "d", kDocuments);
  EXPECT_EQ(read_text(directory / "d.idx"), kGoldenIndex);
  EXPECT_EQ(read_text(directory / "d.bin"), kGoldenTokens);
  EXPECT_EQ(names_in(directory / ""), (std::vector<std::string>{"d.bin", "d.idx"}));
}

TEST(IndexedDataset, ReadsWhatItWroteInEveryType) {
  const Documents documents = {{0, 255, 7}, {}, {1}, std::vector<int32_t>(20000, 42), {}};
  for (const TokenType type : {TokenType::u8, TokenType::u16, TokenType::i32}) {
    const TempDir directory;
    write_dataset(directory / "d", documents, type);
    const IndexedDataset dataset(directory / "d");
    EXPECT_EQ(dataset.token_type(), type);
    EXPECT_EQ(dataset.documents(), 5);
    EXPECT_EQ(dataset.tokens(), 20004);
    EXPECT_EQ(read_all(dataset), documents) << name_of(type);
  }
}

TEST(IndexedDataset, KeepsTheLargestIds) {
  const TempDir directory;
  write_dataset(directory / "a", {{65535}}, TokenType::u16);
  write_dataset(directory / "b", {{std::numeric_limits<int32_t>::max()}}, TokenType::i32);
  EXPECT_EQ(read_all(IndexedDataset(directory / "a")), (Documents{{65535}}));
  EXPECT_EQ(read_all(IndexedDataset(directory / "b")), (Documents{{std::numeric_limits<int32_t>::max()}}));
  IndexedDatasetWriter writer(directory / "c", TokenType::u16);
  EXPECT_THROW(writer.add_document(std::vector<int32_t>{65536}), Error);
  EXPECT_THROW(writer.add_document(std::vector<int32_t>{-1}), Error);
}

TEST(IndexedDataset, OpensWithoutDocuments) {
  const TempDir directory;
  write_dataset(directory / "d", {});
  const IndexedDataset dataset(directory / "d");
  EXPECT_EQ(dataset.documents(), 0);
  EXPECT_EQ(dataset.tokens(), 0);
}

TEST(IndexedDataset, OpensDocumentsOfSeveralSequences) {
  // given: both sequences in one document, so a document index of 0, 2; and modes, all text
  const TempDir directory;
  std::string index = with(kGoldenIndex, 26, uint64_t{2}).substr(0, 58);
  index += from_hex("0000000000000000 0200000000000000");
  write_text(directory / "d.bin", kGoldenTokens);
  for (const std::string& modes : {std::string(), std::string(2, '\0')}) {
    write_text(directory / "d.idx", index + modes);
    const IndexedDataset dataset(directory / "d");
    EXPECT_EQ(dataset.documents(), 1);
    EXPECT_EQ(read_all(dataset), kDocuments);
  }
  write_text(directory / "d.idx", index + std::string("\0\1", 2));
  EXPECT_TRUE(contains(message_of<DataError>([&] { IndexedDataset{directory / "d"}; }), "mode of sequence 1 is 1"));
}

struct Damage {
  const char* what;
  std::string index;
  std::vector<std::string> said;  // parts of the message, besides the file's name
};

TEST(IndexedDataset, NamesTheFieldThatIsWrong) {
  constexpr auto kHuge = std::numeric_limits<uint64_t>::max();
  const Damage damages[] = {
      {"magic", with(kGoldenIndex, 0, 'N'), {"magic is 4e 4d 49", "expected 4d 4d 49"}},
      {"version", with(kGoldenIndex, 9, uint64_t{2}), {"version is 2, expected 1"}},
      {"type: none", with(kGoldenIndex, 17, uint8_t{0}), {"token type code is 0"}},
      {"type: float", with(kGoldenIndex, 17, uint8_t{7}), {"token type code is 7", "expected 1 (uint8), 4"}},
      {"type: another size", with(kGoldenIndex, 17, uint8_t{4}), {"byte offset of sequence 1 is 6, expected 12"}},
      {"count: huge", with(kGoldenIndex, 18, kHuge), {"sequence count is 18446744073709551615, expected at most 4"}},
      {"count: product overflows",
       with(kGoldenIndex, 18, uint64_t{1} << 62),
       {"sequence count is 4611686018427387904"}},
      {"count: one more", with(kGoldenIndex, 18, uint64_t{3}), {"file size is 82, expected 94"}},
      {"document index: huge", with(kGoldenIndex, 26, kHuge), {"document index length is 18446744073709551615"}},
      {"document index: none", with(kGoldenIndex, 26, uint64_t{0}), {"document index length is 0, expected 2"}},
      {"document index: less", with(kGoldenIndex, 26, uint64_t{2}), {"file size is 82, expected 74"}},
      {"length < 0", with(kGoldenIndex, 34, int32_t{-3}), {"length of sequence 0 is -3, expected 0 or more"}},
      {"length too large", with(kGoldenIndex, 34, int32_t{4}), {"byte offset of sequence 1 is 6, expected 8"}},
      {"pointer < 0", with(kGoldenIndex, 50, int64_t{-6}), {"byte offset of sequence 1 is -6, expected 6", "32 bits"}},
      {"first pointer", with(kGoldenIndex, 42, int64_t{2}), {"byte offset of sequence 0 is 2, expected 0"}},
      {"pointer past the end", with(kGoldenIndex, 50, int64_t{1} << 62), {"byte offset of sequence 1 is 4611686018"}},
      {"documents do not start at 0",
       with(kGoldenIndex, 58, int64_t{1}),
       {"document index entry 0 of 3 is 1, expected 0"}},
      {"documents do not end at the count", with(kGoldenIndex, 74, int64_t{1}), {"entry 2 of 3 is 1, expected 2"}},
      {"documents go back", with(kGoldenIndex, 66, int64_t{-1}), {"entry 1 of 3 is -1, expected 0 to 2"}},
      {"documents past the count", with(kGoldenIndex, 66, int64_t{3}), {"entry 1 of 3 is 3, expected 0 to 2"}},
      {"one byte more", kGoldenIndex + '\0', {"file size is 83, expected 82"}},
  };
  for (const Damage& damage : damages) {
    const TempDir directory;
    write_text(directory / "d.bin", kGoldenTokens);
    write_text(directory / "d.idx", damage.index);
    const std::string message = message_of<DataError>([&] { IndexedDataset{directory / "d"}; });
    EXPECT_TRUE(contains(message, directory / "d.idx")) << damage.what;
    for (const std::string& part : damage.said) EXPECT_TRUE(contains(message, part)) << damage.what;
  }
}

TEST(IndexedDataset, RefusesEveryTruncation) {
  const TempDir directory;
  write_text(directory / "d.bin", kGoldenTokens);
  for (size_t size = 0; size < kGoldenIndex.size(); ++size) {
    write_text(directory / "d.idx", kGoldenIndex.substr(0, size));
    EXPECT_THROW(IndexedDataset{directory / "d"}, DataError) << size;
  }
  write_text(directory / "d.idx", kGoldenIndex);
  for (size_t size = 0; size < kGoldenTokens.size(); ++size) {
    write_text(directory / "d.bin", kGoldenTokens.substr(0, size));
    EXPECT_TRUE(contains(message_of<DataError>([&] { IndexedDataset{directory / "d"}; }), "d.bin: file size is"));
  }
}

TEST(IndexedDataset, RefusesEveryFlippedBitOfTheIndex) {
  const TempDir directory;
  write_text(directory / "d.bin", kGoldenTokens);
  for (size_t bit = 0; bit < kGoldenIndex.size() * 8; ++bit) {
    std::string index = kGoldenIndex;
    index[bit / 8] = static_cast<char>(index[bit / 8] ^ (1 << bit % 8));
    write_text(directory / "d.idx", index);
    // Here document 0 becomes empty, which is still a valid dataset.
    if (bit == 66 * 8) continue;
    EXPECT_THROW(IndexedDataset{directory / "d"}, DataError) << "bit " << bit;
  }
}

TEST(IndexedDataset, SurvivesRandomDamage) {
  // given: bytes overwritten, removed and inserted at random
  const TempDir directory;
  std::mt19937_64 random(1);
  int opened = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string index = kGoldenIndex, tokens = kGoldenTokens;
    for (auto changes = random() % 4; changes-- > 0;) {
      std::string& bytes = random() % 8 == 0 ? tokens : index;
      if (bytes.empty()) continue;
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.erase(at, 1 + random() % 8); break;
        case 2: bytes.insert(at, 1 + random() % 8, static_cast<char>(random() % 3 - 1)); break;
        case 3: bytes[at] = static_cast<char>(random() % 2 ? 0x7f : 0xff); break;
      }
    }
    write_text(directory / "d.idx", index);
    write_text(directory / "d.bin", tokens);
    // then: a DataError, or a dataset that can be read in full
    try {
      read_all(IndexedDataset(directory / "d"));
      ++opened;
    } catch (const DataError&) {
    }
  }
  EXPECT_GT(opened, 50);
  EXPECT_LT(opened, 1250);
}

TEST(IndexedDataset, NamesAMissingFile) {
  const TempDir directory;
  EXPECT_TRUE(contains(message_of<IoError>([&] { IndexedDataset{directory / "d"}; }), directory / "d.bin"));
  write_text(directory / "d.bin", kGoldenTokens);
  EXPECT_TRUE(contains(message_of<IoError>([&] { IndexedDataset{directory / "d"}; }), directory / "d.idx"));
}

TEST(IndexedDataset, AFileThatShrinksIsAnErrorNotASignal) {
  const TempDir directory;
  write_dataset(directory / "d", kDocuments);
  const IndexedDataset dataset(directory / "d");
  std::filesystem::resize_file(directory / "d.bin", 5);
  std::vector<int32_t> tokens(5);
  EXPECT_TRUE(contains(message_of<DataError>([&] { dataset.read(0, tokens); }), "d.bin: ends at byte 5"));
}

TEST(IndexedDataset, ReadsOnlyItsTokens) {
  const TempDir directory;
  write_dataset(directory / "d", kDocuments);
  const IndexedDataset dataset(directory / "d");
  std::vector<int32_t> tokens(2);
  EXPECT_THROW(dataset.read(4, tokens), Error);
  EXPECT_THROW(dataset.read(-1, tokens), Error);
  EXPECT_THROW(dataset.read(std::numeric_limits<int64_t>::max(), tokens), Error);
}

// Byte offsets that do not fit into 32 bits; the file is sparse.
TEST(IndexedDatasetWriter, GoesOnBehindFourGiB) {
  if (test::kMatrixStride > 1) GTEST_SKIP() << "4 GiB are hashed";
  const TempDir dir;
  const std::string prefix = dir / "d";
  constexpr int32_t kLength = 1'100'000'000;
  constexpr int64_t kTokens = 2 * int64_t{kLength};
  std::string lengths(34, '\0');  // after the header, which is written at the end
  for (int i = 0; i < 2; ++i) lengths.append(reinterpret_cast<const char*>(&kLength), sizeof kLength);
  write_text(prefix + ".idx.tmp", lengths);
  write_text(prefix + ".bin.tmp", "");
  std::filesystem::resize_file(prefix + ".bin.tmp", 2 * kTokens);
  IndexedDatasetWriter writer(prefix, TokenType::u16, 2, kTokens);
  writer.add_document(std::vector<int32_t>{5, 6, 7});
  writer.add_document(std::vector<int32_t>{8});
  writer.finish();
  const IndexedDataset dataset(prefix);
  EXPECT_EQ(dataset.tokens(), kTokens + 4);
  EXPECT_EQ(dataset.begin(3), kTokens + 3);
  std::vector<int32_t> last(6);
  dataset.read(kTokens - 2, last);
  EXPECT_EQ(last, (std::vector<int32_t>{0, 0, 5, 6, 7, 8}));
}

TEST(IndexedDatasetWriter, LeavesNothingUnlessItFinishes) {
  const TempDir directory;
  {
    IndexedDatasetWriter writer(directory / "d", TokenType::u16);
    writer.add_document(kDocuments[0]);
  }
  EXPECT_TRUE(names_in(directory / "").empty());
}

TEST(IndexedDatasetWriter, ExcludesASecondWriter) {
  const TempDir directory;
  IndexedDatasetWriter first(directory / "d", TokenType::u16);
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { IndexedDatasetWriter(directory / "d", TokenType::u16); }), "another process"));
  first.finish();
  EXPECT_EQ(names_in(directory / ""), (std::vector<std::string>{"d.bin", "d.idx"}));
}

TEST(IndexedDatasetWriter, OverwritesWhatAKilledWriterLeft) {
  const TempDir directory;
  write_text(directory / "d.bin.tmp", "half of something longer than what comes now");
  write_dataset(directory / "d", kDocuments);
  EXPECT_EQ(read_text(directory / "d.bin"), kGoldenTokens);
}

TEST(IndexedDatasetWriter, AFullDiskLeavesNothing) {
  // given: files may not grow beyond 1 MiB
  const TempDir directory;
  struct rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {1 << 20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  // when: 2 MiB are written
  const std::string message =
      message_of<IoError>([&] { write_dataset(directory / "d", Documents(16, std::vector<int32_t>(65536, 1))); });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, old_handler);
  // then
  EXPECT_TRUE(contains(message, "d.bin.tmp: cannot write"));
  EXPECT_TRUE(names_in(directory / "").empty());
}

}  // namespace
}  // namespace trivet
