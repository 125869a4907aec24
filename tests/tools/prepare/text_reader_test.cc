#include "tools/prepare/text_reader.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <random>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/utf8.h"
#include "tests/engine/data/support.h"
#include "tools/prepare/line_sample.h"

namespace trivet {
namespace {

std::vector<std::string> documents_of(const std::vector<std::string>& files, DocumentOptions options) {
  TextReader reader(files, options);
  std::vector<std::string> documents;
  bool between = true;
  for (TextPiece piece; reader.next(piece); between = piece.ends) {
    EXPECT_EQ(piece.begins, between);
    EXPECT_FALSE(piece.text.empty());
    EXPECT_LE(piece.text.size(), kPieceBytes);
    if (piece.begins) documents.emplace_back();
    documents.back() += piece.text;
  }
  EXPECT_TRUE(between);
  EXPECT_EQ(reader.bytes_read(), reader.bytes_total());
  return documents;
}
std::vector<std::string> documents_of(const std::vector<std::string>& files, DocumentMode mode) {
  return documents_of(files, DocumentOptions{.mode = mode});
}

void write_gzip(const std::string& path, const std::string& bytes) {
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

using Members = std::vector<std::pair<std::string, std::string>>;

// A tar archive of the members or, for a single member without a name, a compressed file.
void write_archive(const std::string& path, int filter, const Members& members) {
  archive* out = archive_write_new();
  ASSERT_EQ(archive_write_add_filter(out, filter), ARCHIVE_OK);
  if (!members.empty() && members[0].first.empty()) archive_write_set_format_raw(out);
  else archive_write_set_format_ustar(out);
  ASSERT_EQ(archive_write_open_filename(out, path.c_str()), ARCHIVE_OK);
  for (const auto& [name, text] : members) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.empty() ? "data" : name.c_str());
    const bool hard = text.starts_with("->"), symbolic = text.starts_with("=>") || name.ends_with(".link");
    archive_entry_set_filetype(entry, symbolic ? AE_IFLNK : AE_IFREG);
    if (symbolic) archive_entry_set_symlink(entry, "a.txt");
    if (hard) archive_entry_set_hardlink(entry, text.c_str() + 2);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, hard || symbolic ? 0 : static_cast<la_int64_t>(text.size()));
    ASSERT_EQ(archive_write_header(out, entry), ARCHIVE_OK) << archive_error_string(out);
    archive_write_data(out, text.data(), text.size());
    archive_entry_free(entry);
  }
  ASSERT_EQ(archive_write_free(out), ARCHIVE_OK);
}

TEST(TextReader, CutsDocuments) {
  const TempDir directory;
  const std::string text =
      "\n\nHead \\Head\\, n.\n   A  thing.\t[1913]\r\n\n   2. Another\n      thing.\n \t \nNext\n\n\nLast without an "
      "end";
  write_text(directory / "a", text);
  const std::vector<std::string> files = {directory / "a"};
  using Texts = std::vector<std::string>;
  EXPECT_EQ(documents_of(files, DocumentMode::file), Texts{text});
  EXPECT_EQ(documents_of(files, DocumentMode::paragraph),
            (Texts{"Head \\Head\\, n. A thing. [1913]", "2. Another thing.", "Next", "Last without an end"}));
  EXPECT_EQ(documents_of(files, DocumentMode::entry),
            (Texts{"Head \\Head\\, n. A thing. [1913]\n2. Another thing.", "Next", "Last without an end"}));
}

TEST(TextReader, EntriesOfOneLineAndMoreStayApart) {
  const TempDir directory;
  write_text(directory / "a", "a\nb\n\nc\nd\n  e\n\n f\n\ng");
  EXPECT_EQ(documents_of({directory / "a"}, DocumentMode::entry), (std::vector<std::string>{"a b", "c d e\nf", "g"}));
}

TEST(TextReader, DocumentsDoNotReachOverFiles) {
  const TempDir directory;
  write_text(directory / "a", "one");
  write_text(directory / "b", "");
  write_text(directory / "c", " \n\n ");
  write_text(directory / "d", "  two\n");
  const std::vector<std::string> files = {directory / "a", directory / "b", directory / "c", directory / "d"};
  for (const auto mode : {DocumentMode::paragraph, DocumentMode::entry})
    EXPECT_EQ(documents_of(files, mode), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(documents_of(files, DocumentMode::file), (std::vector<std::string>{"one", " \n\n ", "  two\n"}));
}

TEST(TextReader, LongDocumentsComeInPieces) {
  // given: a document of several pieces, in paragraphs, in lines, and without a space
  const TempDir directory;
  std::string words, lines, dense;
  while (words.size() < 3'000'000) words += "word" + std::to_string(words.size()) + " ";
  words.pop_back();
  while (dense.size() < 2'500'000) dense += "\xe6\x97\xa5";
  lines = words;
  std::replace(lines.begin(), lines.end(), ' ', '\n');
  write_text(directory / "a", "  first\n\n" + lines + "\n\n last");
  write_text(directory / "b", dense);
  using Texts = std::vector<std::string>;
  // then: they add up to the document
  EXPECT_EQ(documents_of({directory / "a"}, DocumentMode::paragraph), (Texts{"first", words, "last"}));
  EXPECT_EQ(documents_of({directory / "a"}, DocumentMode::entry), (Texts{"first", words + "\nlast"}));
  EXPECT_EQ(documents_of({directory / "b"}, DocumentMode::paragraph), Texts{dense});
  EXPECT_EQ(documents_of({directory / "a", directory / "b"}, DocumentMode::file),
            (Texts{"  first\n\n" + lines + "\n\n last", dense}));
  // and: no part is cut within a word or a character
  write_text(directory / "c", words);
  for (const char* name : {"b", "c"}) {
    TextReader reader({directory / name}, {});
    for (TextPiece piece; reader.next(piece);) {
      EXPECT_EQ(repair_utf8(piece.text), 0);
      if (*name == 'c') {
        EXPECT_TRUE(piece.text.starts_with(piece.begins ? "word0" : " word")) << piece.text.substr(0, 9);
      }
    }
  }
}

TEST(TextReader, ReadsJsonLines) {
  // given: objects with other members, escapes, an empty document and a blank line, the last line without a newline
  const TempDir directory;
  const std::string big(3'000'000, 'x');
  const std::string lines = R"({"id": 1, "text": "one\n\u00e9", "meta": {"a": [1, 2]}})"
                            "\n\n{\"text\": \"\"}\n{\"text\": \"" +
                            big + "\"}\r\n{\"text\": \"last\", \"body\": \"b\"}";
  write_text(directory / "a.jsonl", lines);
  write_gzip(directory / "b.ndjson.gz", lines);
  for (const char* name : {"a.jsonl", "b.ndjson.gz"})
    EXPECT_EQ(documents_of({directory / name}, DocumentMode::file),
              (std::vector<std::string>{"one\n\u00e9", big, "last"}))
        << name;
  // then: anything else is an error that names its line
  const auto message = [&](const std::string& text, const std::string& key = "text") {
    write_text(directory / "c.jsonl", text);
    return message_of<DataError>([&] { documents_of({directory / "c.jsonl"}, DocumentOptions{.json_key = key}); });
  };
  EXPECT_TRUE(contains(message("{\"text\": \"a\"}\n{\"text\": "), "c.jsonl: line 2 at byte 14: not valid JSON"));
  EXPECT_TRUE(contains(message("{\"text\": \"a\\ud800b\"}\n"), "surrogate U+D800..U+DBFF must be followed by"));
  EXPECT_TRUE(contains(message("\n [1]"), "c.jsonl: line 2 at byte 1: found a JSON array, expected an object; jq"));
  EXPECT_TRUE(contains(message("{\"text\": 5}"), "c.jsonl: line 1 at byte 0: text: found 5, expected a string"));
  const std::string deep = std::string(300000, '[') + std::string(300000, ']');
  EXPECT_TRUE(contains(message("{\"text\": " + deep + "}"),
                       "line 1 at byte 0: text: found a list nested more than 8 deep, expected"));
  EXPECT_TRUE(contains(message(deep), "c.jsonl: line 1 at byte 0: found a JSON array, expected an object"));
  EXPECT_TRUE(contains(message("5"), "c.jsonl: line 1 at byte 0: found 5, expected an object"));
  EXPECT_TRUE(
      contains(message("{\"text\": \"a\"}", "body"),
               "c.jsonl: line 1 at byte 0: body: found nothing, expected the text of a document; --json-key names its "
               "member, such as text"));
  write_text(directory / "c.jsonl", "{\"text\": \"a\", \"body\": \"b\"}\n");
  EXPECT_EQ(documents_of({directory / "c.jsonl"}, DocumentOptions{.json_key = "body"}), std::vector<std::string>{"b"});
}

// json.dumps() writes NaN, which the standard lacks, and unpaired surrogates.
TEST(TextReader, ReadsJsonLinesAsPythonWritesThem) {
  const TempDir directory;
  const std::string path = directory / "a.jsonl";
  const auto read = [&](const std::string& text, OnError on_error) {
    write_text(path, text);
    return documents_of({path}, DocumentOptions{.on_error = on_error});
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(read(R"({"score": NaN, "a": [-Infinity, Infinity], "text": "is NaN \\\"Infinity"})", OnError::stop),
            Texts{"is NaN \\\"Infinity"});
  const auto message = [&](const std::string& text, OnError on_error) {
    return message_of<DataError>([&] { read(text, on_error); });
  };
  EXPECT_TRUE(contains(message(R"({"text": NaN})", OnError::stop), "text: found null, expected a string"));
  EXPECT_TRUE(contains(message(R"({"text": NaNs})", OnError::stop), "line 1 at byte 0: not valid JSON"));
  // U+FFFD replaces unpaired surrogates and invalid bytes, nothing else, and what is not JSON is still an error
  EXPECT_EQ(read(R"({"text": "a\ud83d\ude00b\udc00\ud800\ud800\udc00\\ud800"})"
                 "\n{\"x\": \"\\udfff\", \"text\": \"\xff\"}",
                 OnError::replace),
            (Texts{"a\U0001f600b\ufffd\ufffd\U00010000\\ud800", "\ufffd"}));
  EXPECT_TRUE(contains(message(R"({"text": "\ud83d"})", OnError::stop), "surrogate U+D800..U+DBFF must be followed"));
  for (const char* cut : {R"({"text": "\ud83d)", R"({"text": "\ud83)", R"({"text": "\)", "{\"text\": \""})
    EXPECT_TRUE(contains(message(cut, OnError::replace), "line 1 at byte 0: not valid JSON")) << cut;
}

TEST(TextReader, RefusesWhatIsNoText) {
  const TempDir directory;
  const auto message = [&](const char* name, const std::string& bytes) {
    write_text(directory / name, bytes);
    return message_of<DataError>([&] { TextReader({directory / name}, {}); });
  };
  EXPECT_TRUE(contains(message("a.json", "[{\"text\": \"a\"}]"), "a.json: is JSON, whose syntax would become part"));
  EXPECT_TRUE(contains(message("a.json", "{}"), "write its documents to a JSON Lines file (.jsonl)"));
  EXPECT_TRUE(contains(message("a.txt.bz2", "BZh91AY"), "is compressed by bzip2, expected text, JSON Lines or a tar"));
  EXPECT_TRUE(contains(message("a.parquet", "PAR1\x15"), "is Parquet"));
  EXPECT_TRUE(contains(message("a", "PK\3\4\5"), "is a zip archive"));
}

TEST(TextReader, KnowsByteOrderMarks) {
  const TempDir directory;
  write_text(directory / "a", "\xef\xbb\xbfone \xef\xbb\xbftwo");
  write_text(directory / "a.jsonl", "\xef\xbb\xbf{\"text\": \"one\"}\n");
  EXPECT_EQ(documents_of({directory / "a", directory / "a.jsonl"}, {}),
            (std::vector<std::string>{"one \xef\xbb\xbftwo", "one"}));
  for (const std::string& text : {std::string("\xff\xfeo\0", 4), std::string("\xfe\xff\0o", 4)}) {
    write_text(directory / "b", text);
    EXPECT_TRUE(contains(message_of<DataError>([&] { documents_of({directory / "b"}, {}); }),
                         "of UTF-16, expected UTF-8: iconv -f UTF-16 -t UTF-8 " + directory / "b"));
  }
}

TEST(TextReader, ReadsTheSameCompressed) {
  // given: text of many blocks, with lines of all lengths and any bytes
  const TempDir directory;
  std::mt19937_64 random(1);
  std::string text;
  while (text.size() < 700'000) {
    const size_t length = random() % 100 == 0 ? random() % 400'000 : random() % 100;
    for (size_t i = 0; i < length; ++i) text += static_cast<char>(random() % 8 == 0 ? random() : 'a' + random() % 20);
    text += random() % 3 == 0 ? "\n\n" : "\n";
  }
  write_text(directory / "plain", text);
  write_gzip(directory / "a.gz", text);
  write_gzip(directory / "a.dz", text);
  write_gzip(directory / "unnamed", text);
  write_archive(directory / "a.zst", ARCHIVE_FILTER_ZSTD, {{"", text}});
  write_archive(directory / "a.xz", ARCHIVE_FILTER_XZ, {{"", text}});
  write_archive(directory / "named.txt", ARCHIVE_FILTER_XZ, {{"", text}});
  // A skippable frame, which pzstd writes first, and two streams.
  const std::string skipped("\x50\x2a\x4d\x18\4\0\0\0skip", 12);
  write_archive(directory / "front.zst", ARCHIVE_FILTER_ZSTD, {{"", text.substr(0, 300'000)}});
  write_archive(directory / "back.zst", ARCHIVE_FILTER_ZSTD, {{"", text.substr(300'000)}});
  write_text(directory / "two.zst", skipped + read_text(directory / "front.zst") + read_text(directory / "back.zst"));
  // Two members, as `cat a.gz b.gz` makes them.
  write_gzip(directory / "front", text.substr(0, 300'000));
  write_gzip(directory / "back", text.substr(300'000));
  write_text(directory / "two.gz", read_text(directory / "front") + read_text(directory / "back"));
  for (const auto mode : {DocumentMode::file, DocumentMode::paragraph, DocumentMode::entry}) {
    const auto expected = documents_of({directory / "plain"}, mode);
    for (const char* name : {"a.gz", "a.dz", "unnamed", "two.gz", "a.zst", "a.xz", "named.txt", "two.zst"})
      EXPECT_EQ(documents_of({directory / name}, mode), expected) << name;
  }
}

// Small files that would fill the disk, in each layer: a compressed file, a compressed file in an archive, a hole in an
// archive, many small files.
TEST(TextReader, RefusesDecompressionBombs) {
  const TempDir directory;
  constexpr size_t kSize = 67 << 20;
  const std::string zeros(kSize, '\0');
  write_gzip(directory / "a.gz", zeros);
  write_archive(directory / "a.zst", ARCHIVE_FILTER_ZSTD, {{"", zeros}});
  write_archive(directory / "a.tar", ARCHIVE_FILTER_NONE, {{"b.txt.gz", read_text(directory / "a.gz")}});
  archive* out = archive_write_new();
  archive_write_set_format_pax(out);
  ASSERT_EQ(archive_write_open_filename(out, (directory / "hole.tar").c_str()), ARCHIVE_OK);
  archive_entry* entry = archive_entry_new();
  archive_entry_set_pathname(entry, "b.txt");
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_entry_set_size(entry, kSize);
  archive_entry_sparse_add_entry(entry, 0, 512);
  ASSERT_EQ(archive_write_header(out, entry), ARCHIVE_OK);
  archive_write_data(out, zeros.data(), 512);
  archive_entry_free(entry);
  ASSERT_EQ(archive_write_free(out), ARCHIVE_OK);
  ASSERT_LT(std::filesystem::file_size(directory / "hole.tar"), 20'000u);
  write_gzip(directory / "quarter.gz", zeros.substr(0, kSize / 4));
  const std::string quarter = read_text(directory / "quarter.gz");
  write_archive(directory / "many.tar", ARCHIVE_FILTER_NONE,
                {{"a.txt.gz", quarter}, {"b.txt.gz", quarter}, {"c.txt.gz", quarter}, {"d.txt.gz", quarter}});
  for (const char* name : {"a.gz", "a.zst", "a.tar", "hole.tar", "many.tar"}) {
    const std::string path = directory / name;
    const std::string message = message_of<DataError>([&] {
      TextReader reader({path}, {});
      for (TextPiece piece; reader.next(piece);) ASSERT_LE(piece.text.size(), kPieceBytes);
    });
    EXPECT_TRUE(message.starts_with(path)) << message;
    EXPECT_TRUE(contains(message, "expected at most 500 times its size: a decompression bomb?"));
  }
}

TEST(TextReader, RefusesDamagedFiles) {
  const TempDir directory;
  std::string text;
  for (const std::string& sentence : made_up_sentences(20000, 3)) text += sentence + "\n\n";
  write_gzip(directory / "a.gz", text);
  const std::string bytes = read_text(directory / "a.gz"), path = directory / "b.gz";
  const auto message = [&](const std::string& damaged) {
    write_text(path, damaged);
    return message_of<DataError>([&] { documents_of({path}, DocumentMode::paragraph); });
  };
  for (const size_t size : {size_t{11}, bytes.size() / 2, bytes.size() - 8, bytes.size() - 1})
    EXPECT_TRUE(contains(message(bytes.substr(0, size)), path + ": the compressed file is truncated")) << size;
  std::string flipped = bytes;
  flipped[bytes.size() / 2] = static_cast<char>(flipped[bytes.size() / 2] ^ 4);
  EXPECT_TRUE(contains(message(flipped), path + ": the compressed file is "));
  flipped = bytes;
  flipped[bytes.size() - 6] = static_cast<char>(flipped[bytes.size() - 6] ^ 4);
  EXPECT_TRUE(contains(message(flipped), "damaged: "));
  // Several streams in a file, as many tools write it: those after the first are not silently dropped.
  flipped = bytes + bytes;
  flipped[bytes.size()] = static_cast<char>(flipped[bytes.size()] ^ 4);
  EXPECT_TRUE(contains(message(flipped), "damaged: incorrect header check"));
  EXPECT_TRUE(contains(message(bytes + "garbage"), "damaged: incorrect header check"));
  EXPECT_TRUE(contains(message(bytes + bytes.substr(0, 5)), "truncated"));
  write_text(path, bytes + std::string(1 << 20, '\0') + bytes);
  EXPECT_EQ(documents_of({path}, DocumentMode::paragraph).size(), 40000u);
  write_text(path, bytes + std::string(512, '\0'));
  EXPECT_EQ(documents_of({path}, DocumentMode::paragraph).size(), 20000u);
  for (const auto& [name, filter] : {std::pair("b.zst", ARCHIVE_FILTER_ZSTD), std::pair("b.xz", ARCHIVE_FILTER_XZ)}) {
    const std::string good = directory / name;
    write_archive(good, filter, {{"", text}});
    const std::string stored = read_text(good);
    const auto problem = [&](const std::string& damaged) {
      write_text(good, damaged);
      return message_of<DataError>([&] { documents_of({good}, DocumentMode::paragraph); });
    };
    for (const size_t size : {size_t{20}, stored.size() / 2, stored.size() - 1})
      EXPECT_TRUE(contains(problem(stored.substr(0, size)), "the compressed file is damaged or truncated: ")) << size;
    std::string other = stored;
    other[stored.size() / 2] = static_cast<char>(other[stored.size() / 2] ^ 4);
    if (filter == ARCHIVE_FILTER_XZ) {  // zstd was written without checksums
      EXPECT_TRUE(contains(problem(other), "the compressed file is damaged or truncated: "));
    }
    EXPECT_TRUE(contains(problem(stored + "garbage"), "the compressed file is damaged or truncated: ")) << name;
    EXPECT_TRUE(contains(problem("plain text"), "is not compressed by"));
  }
  EXPECT_TRUE(contains(message("plain text"), "is not compressed by gzip"));
  EXPECT_TRUE(contains(message(""), "is empty, expected a file compressed by gzip"));
}

// The inner stream would be mistaken for text, or silently decompressed.
TEST(TextReader, RefusesWhatIsCompressedTwice) {
  const TempDir directory;
  const std::pair<const char*, int> filters[] = {
      {"gz", ARCHIVE_FILTER_GZIP}, {"zst", ARCHIVE_FILTER_ZSTD}, {"xz", ARCHIVE_FILTER_XZ}};
  for (const auto& [inner, inner_filter] : filters)
    for (const auto& [outer, outer_filter] : filters) {
      const std::string once = directory / "in." + inner, twice = once + "." + outer;
      write_archive(once, inner_filter, {{"", "some text"}});
      write_archive(twice, outer_filter, {{"", read_text(once)}});
      EXPECT_EQ(documents_of({once}, DocumentMode::file), std::vector<std::string>{"some text"});
      EXPECT_EQ(message_of<DataError>([&] { documents_of({twice}, DocumentMode::file); }),
                twice + ": is compressed twice, expected once");
    }
}

TEST(TextReader, NamesAFileThatCannotBeRead) {
  const TempDir directory;
  write_text(directory / "a", "text");
  EXPECT_TRUE(contains(message_of<IoError>([&] {
                         TextReader({directory / "a", directory / "b"}, {});
                       }),
                       directory / "b"));
  std::filesystem::create_directory(directory / "c");
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { TextReader({directory / "c"}, {}); }), "is a folder, expected a file"));
  // Nothing writes to this pipe.
  ASSERT_EQ(mkfifo((directory / "pipe").c_str(), 0666), 0);
  EXPECT_TRUE(contains(message_of<DataError>([&] { TextReader({directory / "pipe"}, {}); }), "not a regular file"));
}

TEST(TextReader, ReadsTarArchives) {
  // given: shards as in WebDataset: samples of several members, one of them compressed, and members that are not text
  const TempDir directory;
  const std::string big(700'000, 'x');
  write_gzip(directory / "z", "three");
  const Members members = {{"a/000.json", "{\"text\": \"j0\", \"id\": 1}\n"},
                           {"a/000.txt", "one\n\ntwo"},
                           {"a/001.jpg", "\xff\xd8"},
                           {"a/001.json", "{\"id\": 2,\n \"text\": \"j1\"}"},
                           {"a/001.txt.gz", read_text(directory / "z")},
                           {"a/001.seg.txt", "no"},
                           {"x.link", ""},
                           {"__meta.txt", "no"},
                           {"empty.txt", ""},
                           {"\xc3\xa4.txt", big}};
  write_archive(directory / "a.tar", ARCHIVE_FILTER_NONE, members);
  write_archive(directory / "b.tar.gz", ARCHIVE_FILTER_GZIP, members);
  write_archive(directory / "c.tar.zst", ARCHIVE_FILTER_ZSTD, members);
  using Texts = std::vector<std::string>;
  for (const char* name : {"a.tar", "b.tar.gz", "c.tar.zst"}) {
    const std::string file = directory / name;
    EXPECT_EQ(documents_of({file}, DocumentMode::file), (Texts{"one\n\ntwo", "three", big})) << name;
    EXPECT_EQ(documents_of({file}, DocumentMode::paragraph), (Texts{"one", "two", "three", big})) << name;
    EXPECT_EQ(documents_of({file}, DocumentOptions{.source = {.extensions = {"json"}}}), (Texts{"j0", "j1"})) << name;
    EXPECT_EQ(documents_of({file}, DocumentOptions{.source = {.extensions = {"seg.txt"}}}), Texts{"no"}) << name;
  }
  // then: errors name the archive and the member
  const auto message = [&](const std::string& file, DocumentOptions options = {}) {
    return message_of<DataError>([&] { documents_of({directory / file}, options); });
  };
  EXPECT_TRUE(contains(message("a.tar", {.json_key = "id", .source = {.extensions = {"json"}}}),
                       "a.tar: a/000.json: id: found 1, expected a string"));
  EXPECT_TRUE(
      contains(message("a.tar", {.source = {.extensions = {"html"}}}),
               "a.tar: found 1 .jpg, 2 .json, 1 .link, 1 .seg.txt, 5 .txt in it, expected members named .html"));
  // and: skipped members are counted, and several extensions are read, each in its own format
  TextReader reader({directory / "a.tar"}, {.source = {.extensions = {"txt", "json"}}});
  std::vector<std::string> texts;
  for (TextPiece piece; reader.next(piece);) {
    if (piece.begins) texts.emplace_back();
    texts.back() += piece.text;
  }
  EXPECT_EQ(texts, (Texts{"j0", "one\n\ntwo", "j1", "three", big}));
  EXPECT_EQ(to_string(reader.other_members()), "1 .jpg, 1 .link, 1 .seg.txt, 1 .txt");
  write_text(directory / "e.tar", "");
  EXPECT_TRUE(contains(message("e.tar"), "e.tar: is empty, expected a tar archive"));
  write_archive(directory / "n.tar", ARCHIVE_FILTER_NONE, {{"a\nb.json", "{}"}});
  EXPECT_TRUE(
      contains(message("n.tar", {.source = {.extensions = {"json"}}}), "n.tar: a\\x0ab.json: text: found nothing"));
  write_archive(directory / "d.tar", ARCHIVE_FILTER_NONE, {{"a.txt", "1"}, {"a.txt", "2"}});
  EXPECT_TRUE(contains(message("d.tar"), "d.tar: a.txt: is a duplicate"));
  write_archive(directory / "d.tar", ARCHIVE_FILTER_NONE, {{"a.txt", "1"}, {"b.txt", "2"}, {"a.txt", "3"}});
  EXPECT_EQ(documents_of({directory / "d.tar"}, DocumentMode::file), (Texts{"1", "2", "3"}));
  write_archive(directory / "d.tar", ARCHIVE_FILTER_NONE, {{"a.txt", "1"}, {"b.json", "->a.txt"}});
  EXPECT_EQ(documents_of({directory / "d.tar"}, DocumentMode::file), Texts{"1"}) << "it is not asked for";
  write_archive(directory / "d.tar", ARCHIVE_FILTER_NONE, {{"a.txt", "1"}, {"b.txt", "->a.txt"}});
  EXPECT_TRUE(contains(message("d.tar"), "d.tar: b.txt: a hard link to another file, expected the file"));
  write_archive(directory / "d.tar", ARCHIVE_FILTER_NONE, {{"a.txt", "1"}, {"b.txt", "=>a.txt"}});
  EXPECT_TRUE(contains(message("d.tar"), "d.tar: b.txt: a symbolic link to another file, expected the file"));
  write_archive(directory / "d.tar", ARCHIVE_FILTER_NONE, {});
  EXPECT_TRUE(contains(message("d.tar"), "d.tar: found no file in it"));
  write_text(directory / "d.tar", "no archive, but long enough for one: " + big);
  EXPECT_TRUE(contains(message("d.tar"), "d.tar: the tar archive is damaged or truncated: "));
  const std::string whole = read_text(directory / "a.tar");
  write_archive(directory / "f.tar", ARCHIVE_FILTER_NONE, {{"4.txt", "four"}});
  write_text(directory / "d.tar", whole.substr(0, whole.size() / 2));
  EXPECT_TRUE(contains(message("d.tar"), "d.tar: the tar archive is damaged or truncated: "));
  // an archive that follows another one is read too, and an archive that ends between two members counts as truncated
  write_text(directory / "e.tar", whole + read_text(directory / "f.tar"));
  EXPECT_EQ(documents_of({directory / "e.tar"}, DocumentMode::file), (Texts{"one\n\ntwo", "three", big, "four"}));
  write_text(directory / "d.tar", read_text(directory / "f.tar").substr(0, 1024));
  EXPECT_TRUE(contains(message("d.tar"), "d.tar: the tar archive is cut off: it ends without a block of zeros"));
  std::filesystem::rename(directory / "b.tar.gz", directory / "b.tgz");
  EXPECT_EQ(documents_of({directory / "b.tgz"}, DocumentMode::file), (Texts{"one\n\ntwo", "three", big}));
  std::filesystem::rename(directory / "b.tgz", directory / "b.tar.gz");
  const std::string compressed = read_text(directory / "b.tar.gz");
  write_text(directory / "d.tar.gz", compressed.substr(0, compressed.size() / 2));
  EXPECT_TRUE(contains(message("d.tar.gz"), "d.tar.gz: the compressed file is truncated"));
}

TEST(TextReader, LeavesOutMalformedDocuments) {
  const TempDir directory;
  write_text(directory / "a.jsonl", "{\"text\": \"a\"}\n{\"text\"\n{\"text\": \"\"}\n[]\n{\"text\": \"b\"}\n{");
  TextReader reader({directory / "a.jsonl"}, {.on_error = OnError::skip});
  std::vector<std::string> texts;
  for (TextPiece piece; reader.next(piece);) texts.push_back(piece.text);
  EXPECT_EQ(texts, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(reader.position().malformed, 3);
  EXPECT_EQ(reader.position().empty, 1);
  ASSERT_EQ(reader.problems().size(), 3u);
  EXPECT_TRUE(contains(reader.problems()[0], "a.jsonl: line 2 at byte 14: not valid JSON"));
  EXPECT_TRUE(contains(reader.problems()[1], "line 4 at byte 35: found a JSON array"));
}

TEST(TextReader, LosesNothingBehindAZeroByteOrAKeyGivenTwice) {
  const TempDir directory;
  for (const auto& [line, problem] : std::vector<std::pair<std::string, std::string>>{
           {std::string("{\"text\":\"x\"}\0{\"text\":\"LOST\"}", 28), "parse error at byte 13: a zero byte"},
           {R"({"text":"LOST","text":"x"})", "the key \"text\" occurs twice"}}) {
    write_text(directory / "a.jsonl", line + "\n{\"text\":\"b\"}\n");
    TextReader reader({directory / "a.jsonl"}, {.on_error = OnError::skip});
    TextPiece piece;
    ASSERT_TRUE(reader.next(piece));
    EXPECT_EQ(piece.text, "b");
    EXPECT_FALSE(reader.next(piece));
    ASSERT_EQ(reader.problems().size(), 1u);
    EXPECT_TRUE(contains(reader.problems()[0], problem)) << reader.problems()[0];
    TextReader strict({directory / "a.jsonl"}, {});
    EXPECT_THROW(strict.next(piece), DataError);
  }
}

TEST(TextReader, GoesToWhereAnotherWas) {
  // given: documents of one piece and of several, in files of all kinds
  const TempDir directory;
  std::string lines;
  for (int i = 0; i < 7; ++i)
    lines += "{\"text\": \"" + std::string(i == 4 ? 2'500'000 : 5, static_cast<char>('a' + i)) + "\"}\n\n{\n";
  write_text(directory / "a.jsonl", lines);
  write_text(directory / "b", "");
  write_text(directory / "c", "one\n\ntwo");
  write_archive(directory / "d.tar", ARCHIVE_FILTER_NONE, {{"1.txt", "three"}, {"2.txt", "four"}});
  const DocumentOptions options{.mode = DocumentMode::paragraph, .on_error = OnError::skip};
  const auto rest = [&](const ReadPosition& from, std::vector<ReadPosition>* positions) {
    TextReader reader({directory / "a.jsonl", directory / "b", directory / "c", directory / "d.tar"}, options);
    reader.go_to(from);
    std::vector<std::string> texts;
    for (TextPiece piece; reader.next(piece);) {
      if (piece.begins) texts.emplace_back();
      texts.back() += piece.text;
      if (positions && piece.ends) positions->push_back(reader.position());
    }
    EXPECT_EQ(reader.bytes_read(), reader.bytes_total());
    EXPECT_EQ(reader.position().malformed, 7);
    EXPECT_EQ(reader.position().empty, 1);
    return texts;
  };
  std::vector<ReadPosition> positions;
  const auto all = rest({}, &positions);
  ASSERT_EQ(all.size(), 11u);
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(rest(positions[i], nullptr), std::vector(all.begin() + static_cast<std::ptrdiff_t>(i) + 1, all.end()))
        << i;
}

TEST(TextReader, ReadsStandardInput) {
  const TempDir directory;
  write_archive(directory / "in.zst", ARCHIVE_FILTER_ZSTD, {{"", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"}});
  const int before = dup(STDIN_FILENO), file = open((directory / "in.zst").c_str(), O_RDONLY);
  dup2(file, STDIN_FILENO);
  TextReader reader({"-"}, {.source = {.format = TextFormat::jsonl}});
  std::vector<std::string> texts;
  for (TextPiece piece; reader.next(piece);) texts.push_back(piece.text);
  lseek(file, 0, SEEK_SET);
  const std::string untold = message_of<DataError>([] {
    TextPiece piece;
    TextReader({"-"}, {}).next(piece);
  });
  dup2(before, STDIN_FILENO);
  close(before);
  close(file);
  EXPECT_EQ(texts, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(reader.bytes_total(), 0);
  EXPECT_TRUE(contains(untold, "standard input begins with \"{\": add --format jsonl"));
}

TEST(ExpandInputs, FoldersAndFiles) {
  const TempDir directory;
  std::filesystem::create_directories(directory / "f/sub");
  for (const char* name :
       {"f/b.txt", "f/a.jsonl.zst", "f/sub/c.tar", "f/no.bin", "f/sub/10.txt", "f/sub/9.txt", "{odd}.txt", "a[1].txt"})
    write_text(directory / name, "x");
  SourceOptions options;
  const auto names = [&](const std::string& input) {
    std::vector<std::string> found;
    for (const std::string& file : expand_inputs({directory / input}, options))
      found.push_back(file.substr((directory / "").size()));
    return found;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("f"), (Names{"f/a.jsonl.zst", "f/b.txt", "f/sub/10.txt", "f/sub/9.txt", "f/sub/c.tar"}));
  EXPECT_EQ(names("{odd}.txt"), Names{"{odd}.txt"});
  EXPECT_EQ(names("a[1].txt"), Names{"a[1].txt"});
  ExtensionCounts taken, others;
  expand_inputs({directory / "f"}, options, &taken, &others);
  EXPECT_EQ(to_string(taken), "1 .jsonl, 1 .tar, 3 .txt");
  EXPECT_EQ(to_string(others), "1 .bin");
  const auto message = [&]<class E>(const std::string& input, E) {
    return message_of<E>([&] { expand_inputs({directory / input}, options); });
  };
  const ConfigError missing("");
  EXPECT_TRUE(contains(message("missing", missing), "missing: there is no such file or directory"));
  for (const char* pattern : {"*.none", "a?.txt", "s-{008..010}.tar", "[a-c].txt"})
    EXPECT_TRUE(
        contains(message(pattern, missing),
                 std::string(pattern) + ": there is no such file or directory; only the shell expands patterns"));
  std::filesystem::create_directory(directory / "empty");
  EXPECT_TRUE(
      contains(message("empty", DataError("")), "a folder with nothing to read, expected names that end in .txt"));
  // and: files with other names are read if requested, and anything but a file is ignored
  std::filesystem::create_symlink("loop", directory / "f/loop");
  options.extensions = {"md", "bin"};
  EXPECT_EQ(names("f"), Names{"f/no.bin"});
  options.extensions = {"md"};
  EXPECT_TRUE(
      contains(message("f", DataError("")), "a folder with 1 .bin, 1 .jsonl, 1 .tar, 3 .txt and nothing to read"));
}

TEST(Utf8, ReplacesWhatIsNone) {
  const auto repaired = [](std::string text) {
    const int64_t replaced = repair_utf8(text);
    return std::pair(text, replaced);
  };
  const std::string sound =
      "a\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf";
  EXPECT_EQ(repaired(sound), (std::pair(sound, int64_t{0})));
  const std::string mark = "\xef\xbf\xbd";
  EXPECT_EQ(repaired("market\x92s"), (std::pair("market" + mark + "s", int64_t{1})));
  // Overlong forms, a surrogate, code points beyond U+10FFFF, stray and missing bytes.
  for (const std::string bad :
       {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\x80", "\xbf", "\xe2\x82", "\xf0\x90\x80", "\xff"}) {
    const auto [text, replaced] = repaired("(" + bad + ")");
    EXPECT_EQ(replaced, static_cast<int64_t>(bad.size()));
    EXPECT_EQ(text.size(), 2 + 3 * bad.size());
  }
  EXPECT_EQ(repaired(""), (std::pair(std::string(), int64_t{0})));
}

TEST(Utf8, ShowsNoControlCharacters) {
  EXPECT_EQ(printable("a\n\x1b[2Jb\x7f\xc2\x9b\xff\xc3\xa9"), "a\n\\x1b[2Jb\\x7f\\xc2\\x9b\\xff\xc3\xa9");
}

TEST(LineSample, KeepsAllOfALittle) {
  LineSample sample(100);
  sample.add("one\ntwo\n\nthree");
  sample.add("four\n");
  EXPECT_EQ(sample.take(), (std::vector<std::string>{"one", "two", "three", "four"}));
}

TEST(LineSample, SpreadsOverALot) {
  // given: 100,000 lines and room for about 1,000
  LineSample sample(6000), again(6000);
  for (int i = 0; i < 100'000; ++i) {
    sample.add(std::to_string(100'000 + i));
    again.add(std::to_string(100'000 + i));
  }
  const auto lines = sample.take();
  // then: as many lines as fit, in order, from the whole input, and the same lines both times
  EXPECT_EQ(lines.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(lines.begin(), lines.end()));
  for (int tenth = 0; tenth < 10; ++tenth) {
    const auto in_tenth =
        std::count_if(lines.begin(), lines.end(), [&](const std::string& line) { return line[1] == '0' + tenth; });
    EXPECT_NEAR(static_cast<double>(in_tenth), 100, 40);
  }
  EXPECT_EQ(again.take(), lines);
}

TEST(LineSample, CutsLongLinesBetweenCharacters) {
  std::string spaced, dense;
  while (spaced.size() < 30'000) spaced += "word ";
  while (dense.size() < 30'000) dense += "\xe6\x97\xa5";
  for (const std::string& text : {spaced, dense}) {
    LineSample sample(1 << 20);
    sample.add(text);
    std::string joined;
    for (const std::string& line : sample.take()) {
      EXPECT_LE(line.size(), 4096u);
      EXPECT_GT(line.size(), 1000u);
      std::string copy = line;
      EXPECT_EQ(repair_utf8(copy), 0);
      joined += line;
    }
    EXPECT_EQ(joined, text);
  }
}

TEST(LineSample, KeepsOneLineHoweverLong) {
  LineSample sample(10);
  sample.add("a line of more than ten bytes\nanother such line, also long");
  EXPECT_EQ(sample.take().size(), 1u);
}

}  // namespace
}  // namespace trivet
