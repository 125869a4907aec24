#include "engine/data/text_reader.h"

#include <random>
#include <sys/stat.h>
#include <zlib.h>

#include "base/utf8.h"
#include "engine/data/line_sample.h"
#include "tests/engine/data/support.h"

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
  // and: none is cut in a word or in a character
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
  // given: objects with other members, escapes, an empty document and a blank line, the last without an end
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
  // then: what is none is named by its line
  const auto message = [&](const std::string& text, const std::string& key = "text") {
    write_text(directory / "c.jsonl", text);
    return message_of<DataError>([&] { documents_of({directory / "c.jsonl"}, DocumentOptions{.json_key = key}); });
  };
  EXPECT_TRUE(contains(message("{\"text\": \"a\"}\n{\"text\": "), "c.jsonl: line 2: not valid JSON"));
  EXPECT_TRUE(contains(message("\n[1]"), "c.jsonl: line 2: found [1], expected an object"));
  EXPECT_TRUE(contains(message("{\"text\": 5}"), "c.jsonl: line 1: text: found 5, expected a text"));
  const std::string deep = std::string(300000, '[') + std::string(300000, ']');
  EXPECT_TRUE(
      contains(message("{\"text\": " + deep + "}"), "line 1: text: found a list nested more than 8 deep, expected"));
  EXPECT_TRUE(contains(message(deep), "c.jsonl: line 1: found a list nested more than 8 deep, expected an object"));
  EXPECT_TRUE(contains(message("{\"text\": \"a\"}", "body"),
                       "c.jsonl: line 1: body: found nothing, expected the text of a document; --json-key names its "
                       "member, such as text"));
  write_text(directory / "c.jsonl", "{\"text\": \"a\", \"body\": \"b\"}\n");
  EXPECT_EQ(documents_of({directory / "c.jsonl"}, DocumentOptions{.json_key = "body"}), std::vector<std::string>{"b"});
}

TEST(TextReader, RefusesWhatIsNoText) {
  const TempDir directory;
  const auto message = [&](const char* name, const std::string& bytes) {
    write_text(directory / name, bytes);
    return message_of<DataError>([&] { TextReader({directory / name}, {}); });
  };
  EXPECT_TRUE(contains(message("a.json", "[{\"text\": \"a\"}]"), "a.json: is JSON, whose syntax would become part"));
  EXPECT_TRUE(contains(message("a.json", "{}"), "write its documents to a JSON Lines file (.jsonl)"));
  EXPECT_TRUE(contains(message("a.jsonl.zst", "\x28\xb5\x2f\xfd..."), "is compressed by zstd, expected text or JSON"));
  EXPECT_TRUE(contains(message("a", std::string("\xfd"
                                                "7zXZ\0",
                                                6)),
                       "is compressed by xz"));
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
  // Two members, as `cat a.gz b.gz` makes them.
  write_gzip(directory / "front", text.substr(0, 300'000));
  write_gzip(directory / "back", text.substr(300'000));
  write_text(directory / "two.gz", read_text(directory / "front") + read_text(directory / "back"));
  for (const auto mode : {DocumentMode::file, DocumentMode::paragraph, DocumentMode::entry}) {
    const auto expected = documents_of({directory / "plain"}, mode);
    for (const char* name : {"a.gz", "a.dz", "unnamed", "two.gz"})
      EXPECT_EQ(documents_of({directory / name}, mode), expected) << name;
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
  // Several texts in a file, as many tools write it: what is behind the first is not left out without a word.
  flipped = bytes + bytes;
  flipped[bytes.size()] = static_cast<char>(flipped[bytes.size()] ^ 4);
  EXPECT_TRUE(contains(message(flipped), "damaged: incorrect header check"));
  EXPECT_TRUE(contains(message(bytes + "garbage"), "damaged: incorrect header check"));
  EXPECT_TRUE(contains(message(bytes + bytes.substr(0, 5)), "truncated"));
  write_text(path, bytes + std::string(1 << 20, '\0') + bytes);
  EXPECT_EQ(documents_of({path}, DocumentMode::paragraph).size(), 40000u);
  write_text(path, bytes + std::string(512, '\0'));
  EXPECT_EQ(documents_of({path}, DocumentMode::paragraph).size(), 20000u);
  EXPECT_TRUE(contains(message("plain text"), "is not compressed by gzip"));
  EXPECT_TRUE(contains(message(""), "is not compressed by gzip"));
}

TEST(TextReader, NamesAFileThatCannotBeRead) {
  const TempDir directory;
  write_text(directory / "a", "text");
  EXPECT_TRUE(contains(message_of<IoError>([&] {
                         TextReader({directory / "a", directory / "b"}, {});
                       }),
                       directory / "b"));
  std::filesystem::create_directory(directory / "c");
  EXPECT_TRUE(contains(message_of<DataError>([&] { TextReader({directory / "c"}, {}); }), "name those in it, such as"));
  for (const char* input : {"-", "/dev/stdin"})
    EXPECT_TRUE(contains(message_of<DataError>([&] { TextReader({input}, {}); }), "write it to a file"));
  // Nobody writes to this pipe.
  ASSERT_EQ(mkfifo((directory / "pipe").c_str(), 0666), 0);
  EXPECT_TRUE(contains(message_of<DataError>([&] { TextReader({directory / "pipe"}, {}); }), "not a regular file"));
}

TEST(DocumentMode, KnowsItsNames) {
  EXPECT_EQ(document_mode("file"), DocumentMode::file);
  EXPECT_EQ(document_mode("paragraph"), DocumentMode::paragraph);
  EXPECT_EQ(document_mode("entry"), DocumentMode::entry);
  EXPECT_TRUE(
      contains(message_of<ConfigError>([] { document_mode("line"); }), "\"line\", expected file, paragraph or entry"));
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
  // Overlong forms, a surrogate, beyond U+10FFFF, stray and missing bytes.
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
  // then: as many as fit, in order, from everywhere, and the same again
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
