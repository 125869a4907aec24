#include "tools/prepare/prepare.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "engine/data/statistics.h"
#include "engine/data/tokenizer.h"
#include "tests/engine/data/support.h"
#include "tests/support/where.h"

namespace trivet {
namespace {

class PrepareTest : public testing::Test {
 protected:
  PrepareTest() {
    for (const std::string& sentence : made_up_sentences(3000, 11)) text_ += sentence + "\n\n";
    write_text(directory_ / "in", text_);
    options_.inputs = {directory_ / "in"};
    options_.output = directory_ / "out";
    options_.text.mode = DocumentMode::paragraph;
  }

  void use_sentencepiece() {
    options_.tokenizer = "sentencepiece";
    options_.vocab_size = 350;
  }

  std::vector<std::string> outputs() const {
    std::vector<std::string> names = names_in(directory_ / "");
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("out"); });
    return names;
  }

  std::string message() const {
    return message_of<ConfigError>([&] { prepare_dataset(options_); });
  }

  // The texts of the dataset's documents.
  std::vector<std::string> decoded() const {
    const IndexedDataset dataset(options_.output);
    const auto tokenizer = open_tokenizer(options_.output);
    std::vector<std::string> texts;
    for (int64_t i = 0; i < dataset.sequences(); ++i) {
      std::vector<int32_t> tokens(static_cast<size_t>(dataset.length(i)));
      dataset.read(dataset.begin(i), tokens);
      EXPECT_EQ(tokens.back(), tokenizer->eod());
      texts.push_back(tokenizer->decode(tokens));
    }
    return texts;
  }

  TempDir directory_;
  std::string text_;
  PrepareOptions options_;
};

TEST_F(PrepareTest, BytesComeBack) {
  options_.text.mode = DocumentMode::file;
  const PrepareResult result = prepare_dataset(options_);
  EXPECT_EQ(decoded(), std::vector<std::string>{text_});
  EXPECT_EQ(result.info.tokens, static_cast<int64_t>(text_.size()) + 1);
  EXPECT_EQ(result.info.text_bytes, static_cast<int64_t>(text_.size()));
  EXPECT_EQ(outputs(), (std::vector<std::string>{"out.bin", "out.idx", "out.json"}));
}

TEST_F(PrepareTest, MakesTheFolderOfTheOutput) {
  options_.text.mode = DocumentMode::file;
  options_.output = directory_ / "new/folder/out";
  prepare_dataset(options_);
  EXPECT_EQ(decoded(), std::vector<std::string>{text_});
}

TEST_F(PrepareTest, SentencePieceComesBack) {
  use_sentencepiece();
  const PrepareResult result = prepare_dataset(options_);
  EXPECT_EQ(decoded(), made_up_sentences(3000, 11));
  EXPECT_EQ(outputs(), (std::vector<std::string>{"out.bin", "out.idx", "out.json", "out.model"}));
  // The sidecar states what was returned, and agrees with the files.
  const IndexedDataset dataset(options_.output);
  EXPECT_EQ(read_dataset_info(options_.output), result.info);
  EXPECT_EQ(result.info.vocab_size, 350);
  EXPECT_EQ(dataset.documents(), 3000);
  check_written_together(result.info, dataset);
  check_bin_hash(result.info, dataset);
}

TEST_F(PrepareTest, IsTheSameWithAnyNumberOfThreadsAndWithItsOwnModel) {
  use_sentencepiece();
  options_.threads = 1;
  prepare_dataset(options_);
  const std::string prefix = options_.output;
  for (const int threads : {2, 5}) {
    options_.output = directory_ / ("again" + std::to_string(threads));
    options_.threads = threads;
    if (threads == 5) {
      options_.vocab_size.reset();
      options_.model = prefix + ".model";
    }
    prepare_dataset(options_);
    for (const char* suffix : {".bin", ".idx", ".json", ".model"})
      EXPECT_EQ(read_text(options_.output + suffix), read_text(prefix + suffix)) << suffix;
  }
}

TEST_F(PrepareTest, PiecesOfALongDocumentHaveTheTokensOfTheWhole) {
  // given: one document of two pieces, with runs of spaces, among short documents
  std::string text = text_;
  while (text.size() < 1'500'000) text += text_ + "    ";
  std::replace(text.begin(), text.end(), '\n', ' ');
  write_text(directory_ / "in", text);
  write_text(directory_ / "short", "another one");
  options_.inputs.push_back(directory_ / "short");
  options_.text.mode = DocumentMode::file;
  use_sentencepiece();
  options_.train_bytes = 100'000;
  prepare_dataset(options_);
  // then: each document has the tokens that it would have if encoded whole
  const auto tokenizer = open_tokenizer(options_.output);
  const IndexedDataset dataset(options_.output);
  ASSERT_EQ(dataset.sequences(), 2);
  EXPECT_EQ(decoded(), (std::vector<std::string>{text, "another one"}));
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.length(0)));
  dataset.read(0, tokens);
  std::vector<int32_t> whole = tokenizer->encode(text);
  whole.push_back(tokenizer->eod());
  EXPECT_EQ(tokens, whole);
}

TEST_F(PrepareTest, ReadsJsonLines) {
  std::string lines;
  for (const std::string& sentence : made_up_sentences(3000, 11)) lines += "{\"text\": \"" + sentence + "\"}\n";
  write_text(directory_ / "in.jsonl", lines);
  options_.inputs = {directory_ / "in.jsonl"};
  EXPECT_TRUE(contains(message(), "in.jsonl has one document in each JSON object: leave --document out"));
  options_.text.mode = DocumentMode::file;
  use_sentencepiece();
  prepare_dataset(options_);
  EXPECT_EQ(decoded(), made_up_sentences(3000, 11));
  std::filesystem::remove(directory_ / "in.jsonl");
}

TEST_F(PrepareTest, DocumentIsOfTextFilesBesideJsonLines) {
  write_text(directory_ / "in.jsonl", "{\"text\": \"one\\n\\ntwo\"}\n{\"text\": \"three\"}\n");
  write_text(directory_ / "in.txt", "four\n\nfive");
  options_.inputs = {directory_ / "in.jsonl", directory_ / "in.txt"};
  options_.text.mode = DocumentMode::paragraph;
  prepare_dataset(options_);
  EXPECT_EQ(decoded(), (std::vector<std::string>{"one\n\ntwo", "three", "four", "five"}));
}

TEST_F(PrepareTest, RepairsTextForSentencePieceOnly) {
  write_text(directory_ / "in", text_ + "market\x92s drop\tand \xff\xfe");
  const PrepareResult bytes = prepare_dataset(options_);
  EXPECT_EQ(bytes.done.replaced_bytes, 0);
  EXPECT_EQ(decoded().back(), "market\x92s drop and \xff\xfe");
  options_.force = true;
  use_sentencepiece();
  EXPECT_EQ(prepare_dataset(options_).done.replaced_bytes, 3);
  EXPECT_EQ(decoded().back(), "market\xef\xbf\xbds drop and \xef\xbf\xbd\xef\xbf\xbd");
}

TEST_F(PrepareTest, OverwritesOnlyWhenTold) {
  use_sentencepiece();
  prepare_dataset(options_);
  const std::string before = read_text(options_.output + ".bin");
  EXPECT_TRUE(contains(message(), options_.output + ".bin exists; --force"));
  EXPECT_EQ(read_text(options_.output + ".bin"), before);
  // A bytes dataset in its place leaves no model behind.
  options_.force = true;
  options_.tokenizer = "bytes";
  options_.vocab_size.reset();
  prepare_dataset(options_);
  EXPECT_EQ(outputs(), (std::vector<std::string>{"out.bin", "out.idx", "out.json"}));
  EXPECT_EQ(decoded(), made_up_sentences(3000, 11));
}

// One of the calls, no matter which, makes the dataset, and the others say why they do not.
TEST_F(PrepareTest, SeveralAtOnceDoNotMix) {
  write_text(directory_ / "in", "a few words\n");
  options_.threads = 1;
  for (int round = 0; round < 50; ++round) {
    options_.output = directory_ / ("out" + std::to_string(round));
    std::atomic<int> made = 0, refused = 0;
    {
      std::vector<std::jthread> calls;
      for (int call = 0; call < 4; ++call)
        calls.emplace_back([&] {
          try {
            prepare_dataset(options_);
            ++made;
          } catch (const ConfigError& error) {  // another call has finished
            refused += std::string(error.what()).find("exists; --force overwrites it") != std::string::npos;
          } catch (const IoError& error) {
            refused += std::string(error.what()).find("another process is writing it") != std::string::npos;
          }
        });
    }
    EXPECT_EQ(made, 1) << "round " << round;
    EXPECT_EQ(refused, 3) << "round " << round;
    EXPECT_EQ(decoded(), std::vector<std::string>{"a few words"});
  }
}

TEST_F(PrepareTest, AFailureLeavesWhatWasThere) {
  prepare_dataset(options_);
  const std::string before = read_text(options_.output + ".bin");
  options_.force = true;
  // given: an input that proves damaged at its end
  write_text(directory_ / "in", std::string("\x1f\x8b\x08\0\0\0\0\0\0\3", 10) + "no deflate stream");
  EXPECT_THROW(prepare_dataset(options_), DataError);
  EXPECT_EQ(outputs(), (std::vector<std::string>{"out.bin", "out.idx", "out.json"}));
  EXPECT_EQ(read_text(options_.output + ".bin"), before);
  // and: a progress callback that stops it
  write_text(directory_ / "in", text_);
  EXPECT_THROW(prepare_dataset(options_, [](const PrepareProgress&) { throw std::runtime_error("stop"); }),
               std::runtime_error);
  EXPECT_EQ(outputs(), (std::vector<std::string>{"out.bin", "out.idx", "out.json"}));
  EXPECT_EQ(read_text(options_.output + ".bin"), before);
}

TEST_F(PrepareTest, GoesOnWhereItWasStopped) {
  // given: several files, saved every 10,000 bytes of tokens
  std::string lines;
  for (const std::string& sentence : made_up_sentences(60'000, 12)) lines += "{\"text\": \"" + sentence + "\"}\n{}\n";
  write_text(directory_ / "b.jsonl", lines);
  options_.inputs.push_back(directory_ / "b.jsonl");
  options_.text.on_error = OnError::skip;
  options_.threads = 2;
  options_.tokenizer = "bpe";
  options_.vocab_size = 300;
  options_.output = directory_ / "whole";
  const PrepareResult whole = prepare_dataset(options_);
  EXPECT_EQ(whole.done.read.malformed, 60'000);
  // when: each call is stopped one part later than the previous call, until a call finishes
  options_.output = directory_ / "out";
  options_.vocab_size.reset();
  options_.model = directory_ / "whole.tokenizer.json";
  options_.eod_token = "<|endoftext|>";
  options_.part_bytes = 10'000;
  int64_t before = 0;
  int calls = 0;
  PrepareResult result;
  for (bool ended = false; !ended; ++calls) {
    ASSERT_LT(calls, 100);
    try {
      result = prepare_dataset(options_, [&](const PrepareProgress& progress) {
        if (progress.tokens > before) before = progress.tokens, throw std::runtime_error("stop");
      });
      ended = true;
    } catch (const std::runtime_error& error) {
      ASSERT_STREQ(error.what(), "stop");
      EXPECT_TRUE(std::filesystem::exists(directory_ / "out.partial.json"));
    }
  }
  EXPECT_GT(calls, 2);
  EXPECT_GT(result.earlier.documents, 0);
  // then: the output equals that of a single call
  for (const char* suffix : {".bin", ".idx", ".json", ".tokenizer.json"})
    EXPECT_EQ(read_text((directory_ / "out") + suffix), read_text((directory_ / "whole") + suffix)) << suffix;
  EXPECT_EQ(outputs(), (std::vector<std::string>{"out.bin", "out.idx", "out.json", "out.tokenizer.json",
                                                 "out.tokenizer_config.json"}));
  EXPECT_EQ(result.done.read.malformed, whole.done.read.malformed);
  EXPECT_EQ(result.info, whole.info);
}

TEST_F(PrepareTest, WhatWasSavedStaysAtTheNextError) {
  // given: a valid file, and one that is malformed at its end
  std::string lines;
  for (const std::string& sentence : made_up_sentences(60'000, 12)) lines += "{\"text\": \"" + sentence + "\"}\n";
  write_text(directory_ / "a.jsonl", lines);
  write_text(directory_ / "b.jsonl", "{\"text\"\n");
  options_.inputs = {directory_ / "a.jsonl", directory_ / "b.jsonl"};
  options_.text.mode = DocumentMode::file;
  options_.part_bytes = 10'000;
  const std::vector<std::string> saved = {"out.bin.tmp", "out.idx.tmp", "out.partial.json"};
  for (int call = 0; call < 3; ++call) {
    EXPECT_THROW(prepare_dataset(options_), DataError);
    EXPECT_EQ(outputs(), saved) << call;
  }
  // then: if the malformed line is skipped, only the rest is encoded
  options_.text.on_error = OnError::skip;
  const PrepareResult result = prepare_dataset(options_);
  EXPECT_GT(result.earlier.documents, 30'000);
  EXPECT_EQ(result.info.documents, 60'000);
  // and: a call that may not skip a line still stops at a line that an earlier call skipped
  options_.output = directory_ / "out2";
  std::swap(options_.inputs[0], options_.inputs[1]);
  EXPECT_THROW(prepare_dataset(options_, [](const PrepareProgress&) { throw std::runtime_error("stop"); }),
               std::runtime_error);
  options_.text.on_error = OnError::stop;
  EXPECT_TRUE(contains(message_of<DataError>([&] { prepare_dataset(options_); }), "b.jsonl: line 1"));
  // and: documents with replaced characters are counted
  write_text(directory_ / "b.jsonl", "{\"text\": \"\\ud800\"}\n{\"text\": \"x\"}\n");
  options_.text.on_error = OnError::replace;
  EXPECT_EQ(prepare_dataset(options_).done.read.replaced, 1);
}

TEST_F(PrepareTest, ShufflesDocumentsByASeed) {
  prepare_dataset(options_);
  const std::vector<std::string> in_order = decoded(), files = outputs();
  options_.force = true;
  const auto of_seed = [&](uint64_t seed) {
    options_.shuffle_documents = seed;
    const PrepareResult result = prepare_dataset(options_);
    EXPECT_EQ(outputs(), files) << "nothing else stays";
    check_bin_hash(result.info, IndexedDataset(options_.output));
    return decoded();
  };
  const std::vector<std::string> one = of_seed(1);
  EXPECT_NE(one, in_order);
  EXPECT_EQ(of_seed(1), one);
  EXPECT_NE(of_seed(2), one);
  std::vector<std::string> expected = in_order, found = one;
  std::ranges::sort(expected);
  std::ranges::sort(found);
  EXPECT_EQ(found, expected) << "each document once";

  write_text(directory_ / "out.in_order.idx", "another's");
  EXPECT_NE(message().find("out.in_order.idx exists"), std::string::npos);
  EXPECT_EQ(read_small_file(directory_ / "out.in_order.idx", 100), "another's") << "it stays";
  std::filesystem::remove(directory_ / "out.in_order.idx");

  // Stopped during encoding, and during shuffling.
  options_.part_bytes = 2000;
  for (const auto phase : {PrepareProgress::Phase::encoding, PrepareProgress::Phase::shuffling}) {
    options_.shuffle_documents = 1;
    EXPECT_THROW(prepare_dataset(options_,
                                 [&](const PrepareProgress& progress) {
                                   if (progress.phase == phase && progress.tokens > 10'000) throw IoError("stop");
                                 }),
                 IoError);
    prepare_dataset(options_);
    EXPECT_EQ(decoded(), one);
    EXPECT_EQ(outputs(), files);
  }
}

TEST_F(PrepareTest, DoesNotGoOnWithAnotherInput) {
  const auto stop = [&] {
    EXPECT_THROW(prepare_dataset(options_,
                                 [](const PrepareProgress& p) {
                                   if (p.tokens > 0) throw std::runtime_error("stop");
                                 }),
                 std::runtime_error);
    EXPECT_TRUE(std::filesystem::exists(directory_ / "out.partial.json"));
  };
  options_.part_bytes = 1;
  // another option, a file of another size, a lost part: everything is encoded again
  stop();
  options_.append_eod = false;
  PrepareResult result = prepare_dataset(options_);
  EXPECT_EQ(result.earlier.documents, 0);
  EXPECT_EQ(result.info.tokens, result.info.text_bytes);
  options_.force = true;
  stop();
  write_text(directory_ / "in", text_ + "more");
  EXPECT_EQ(prepare_dataset(options_).earlier.documents, 0);
  stop();
  std::filesystem::resize_file(directory_ / "out.bin.tmp", 5);
  EXPECT_EQ(prepare_dataset(options_).earlier.documents, 0);
  EXPECT_EQ(outputs(), (std::vector<std::string>{"out.bin", "out.idx", "out.json"}));
}

// Each option that decides where documents begin, in which format a file is read, or which files are read.
TEST_F(PrepareTest, DoesNotGoOnWithOtherDocuments) {
  std::filesystem::create_directory(directory_ / "folder");
  for (const char* name : {"a.text", "b.txt"}) write_text(directory_ / "folder/" + name, text_);
  options_.inputs = {directory_ / "folder"};
  options_.text.source.extensions = {"text", "txt"};
  options_.part_bytes = 1;
  options_.force = true;
  const PrepareOptions usual = options_;
  const std::vector<std::pair<const char*, std::function<void(PrepareOptions&)>>> changes = {
      {"--document", [](PrepareOptions& o) { o.text.mode = DocumentMode::entry; }},
      {"--document file", [](PrepareOptions& o) { o.text.mode = DocumentMode::file; }},
      {"--extensions", [](PrepareOptions& o) { o.text.source.extensions = {"txt"}; }}};
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    options_ = usual;
    change(options_);
    const PrepareResult expected = prepare_dataset(options_);
    const std::string bytes = read_text(options_.output + ".bin");
    options_ = usual;
    EXPECT_THROW(prepare_dataset(options_,
                                 [](const PrepareProgress& p) {
                                   if (p.tokens > 0) throw std::runtime_error("stop");
                                 }),
                 std::runtime_error);
    ASSERT_TRUE(std::filesystem::exists(directory_ / "out.partial.json"));
    change(options_);
    const PrepareResult result = prepare_dataset(options_);
    EXPECT_EQ(result.earlier.documents, 0);
    EXPECT_EQ(result.info.tokens, expected.info.tokens);
    EXPECT_EQ(read_text(options_.output + ".bin"), bytes);
  }
}

TEST_F(PrepareTest, DoesNotGoOnWithAnotherJsonKey) {
  std::string lines;
  for (int i = 0; i < 200; ++i) {
    const std::string number = std::to_string(i);
    lines += "{\"a\":\"one " + number + "\",\"b\":\"two " + number + "\"}\n";
  }
  write_text(directory_ / "in.jsonl", lines);
  options_.inputs = {directory_ / "in.jsonl"};
  options_.text.mode = DocumentMode::file;
  options_.text.json_key = "a";
  options_.part_bytes = 1;
  EXPECT_THROW(prepare_dataset(options_,
                               [](const PrepareProgress& p) {
                                 if (p.tokens > 0) throw std::runtime_error("stop");
                               }),
               std::runtime_error);
  ASSERT_TRUE(std::filesystem::exists(directory_ / "out.partial.json"));
  options_.text.json_key = "b";
  EXPECT_EQ(prepare_dataset(options_).earlier.documents, 0);
  EXPECT_EQ(decoded().front(), "two 0");
}

TEST_F(PrepareTest, RefusesInputWithoutText) {
  write_text(directory_ / "in", "\n \n");
  EXPECT_TRUE(contains(message_of<DataError>([&] { prepare_dataset(options_); }), "no text in the input"));
  use_sentencepiece();
  EXPECT_TRUE(contains(message_of<DataError>([&] { prepare_dataset(options_); }), "no text to train"));
  EXPECT_TRUE(outputs().empty());
  // and: if every line is refused, the message says how many and why
  write_text(directory_ / "in.jsonl", "{\"body\": 1}\n{\"body\": 2}\n");
  options_ = PrepareOptions();
  options_.inputs = {directory_ / "in.jsonl"};
  options_.output = directory_ / "out";
  options_.text.on_error = OnError::skip;
  for (const char* tokenizer : {"bytes", "sentencepiece", "bpe"}) {
    options_.tokenizer = tokenizer;
    if (options_.tokenizer != "bytes") options_.vocab_size = 300;
    const std::string message = message_of<DataError>([&] { prepare_dataset(options_); });
    EXPECT_TRUE(contains(message, ": 2 malformed documents left out, such as ")) << message;
    EXPECT_TRUE(contains(message, "line 1 at byte 0: text: found nothing")) << message;
  }
}

TEST_F(PrepareTest, NamesWhatCannotBeReadOrWritten) {
  use_sentencepiece();
  options_.inputs.push_back(directory_ / "missing");
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { prepare_dataset(options_); }), directory_ / "missing"));
  options_.inputs.pop_back();
  options_.output = directory_ / "in/out";  // where "in" is a file
  EXPECT_TRUE(contains(message_of<IoError>([&] { prepare_dataset(options_); }), "in: cannot be created"));
  options_.output = directory_ / "out";
  options_.vocab_size.reset();
  options_.model = directory_ / "in";
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { prepare_dataset(options_); }), directory_ / "in: not a SentencePiece"));
  EXPECT_TRUE(outputs().empty());
}

TEST_F(PrepareTest, RefusesOptionsThatWouldDoNothing) {
  const PrepareOptions good = options_;
  const auto with = [&](auto change) {
    options_ = good;
    change(options_);
    return message();
  };
  EXPECT_TRUE(contains(with([](auto& o) { o.vocab_size = 400; }), "need --tokenizer sentencepiece"));
  EXPECT_TRUE(contains(with([](auto& o) { o.model = "m"; }), "need --tokenizer sentencepiece"));
  EXPECT_TRUE(
      contains(with([](auto& o) { o.tokenizer = "words"; }), "\"words\", expected bytes, sentencepiece or bpe"));
  EXPECT_TRUE(contains(with([](auto& o) { o.tokenizer = "sentencepiece"; }), "needs either --vocab-size N"));
  EXPECT_TRUE(contains(with([](auto& o) { o.tokenizer = "sentencepiece", o.vocab_size = 400, o.model = "m"; }),
                       "needs either"));
  EXPECT_TRUE(contains(with([](auto& o) { o.tokenizer = "sentencepiece", o.model = "m", o.train_bytes = 9; }),
                       "no effect with"));
  EXPECT_TRUE(
      contains(with([](auto& o) { o.tokenizer = "sentencepiece", o.vocab_size = 256; }), "is 256, expected 300 to"));
  EXPECT_TRUE(contains(with([](auto& o) { o.threads = -1; }), "--threads is -1"));
  EXPECT_TRUE(contains(with([](auto& o) { o.text.json_key = "body"; }), "none of the inputs is JSON Lines"));
  EXPECT_TRUE(contains(with([](auto& o) { o.text.on_error = OnError::skip; }), "none of the inputs is JSON Lines"));
  EXPECT_TRUE(contains(with([](auto& o) { o.text.source.extensions = {"json"}; }),
                       "--extensions has no effect: none of the inputs is a folder or a tar archive"));
  EXPECT_TRUE(contains(with([](auto& o) { o.output += ",b"; }), "expected a prefix without commas"));
  EXPECT_TRUE(contains(with([](auto& o) { o.inputs = {"-", "-"}; }), "cannot be read twice"));
  EXPECT_TRUE(contains(with([](auto& o) { o.inputs = {"-"}, o.tokenizer = "bpe", o.vocab_size = 300; }), "read twice"));
  EXPECT_TRUE(contains(with([](auto& o) { o.inputs.clear(); }), "no input"));
  EXPECT_TRUE(contains(with([](auto& o) { o.tokenizer = "sentencepiece", o.vocab_size = 100000; }), "100000 ids"));
  EXPECT_TRUE(outputs().empty());
}

TEST_F(PrepareTest, TellsHowFarItIs) {
  use_sentencepiece();
  std::vector<PrepareProgress> seen;
  const PrepareResult result =
      prepare_dataset(options_, [&](const PrepareProgress& progress) { seen.push_back(progress); });
  ASSERT_GT(seen.size(), 3000u);
  EXPECT_EQ(seen.front().phase, PrepareProgress::Phase::sampling);
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].phase, seen[i - 1].phase);
  EXPECT_EQ(seen.back().bytes_read, seen.back().bytes_total);
  EXPECT_EQ(seen.back().tokens, result.info.tokens);
  EXPECT_EQ(seen.back().documents, 3000);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The program's peak memory for an input. The program runs as the child of a small process, because a process's peak
// includes its parent's.
int64_t bytes_taken(const TempDir& directory, const std::string& arguments) {
  const std::string measured =
      "import resource, subprocess, sys; sys.exit(subprocess.call(sys.argv[2:], stdout=subprocess.DEVNULL) or "
      "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=open(sys.argv[1], \"w\")))";
  const int status = std::system(("python3 -c '" + measured + "' " + (directory / "memory") + " " + program_path() +
                                  " data prepare --tokenizer bytes --threads 2 --force --output " +
                                  (directory / "out") + " --input " + arguments)
                                     .c_str());
  int64_t kib = 0;
  if (status == 0) std::ifstream(directory / "memory") >> kib;
  EXPECT_GT(kib, 0);
  return kib << 10;
}

TEST_F(PrepareTest, TakesTheMemoryThatItStates) {
  constexpr int64_t kStated = kMemoryBytes + 2 * kMemoryBytesPerThread;
  // 2 million documents of one byte, and one of 60 MB: far too much at nine bytes of memory per byte
  {
    std::ofstream file(directory_ / "in", std::ios::binary);
    for (int i = 0; i < 2'000'000; ++i) file << "a\n\n";
    for (int i = 0; i < 1'500'000; ++i) file << "some words of a paragraph without an end\n";
  }
  EXPECT_LT(bytes_taken(directory_, (directory_ / "in") + " --document paragraph"), kStated);
  EXPECT_EQ(read_dataset_info(directory_ / "out")->documents, 2'000'001);
  EXPECT_EQ(IndexedDataset(directory_ / "out").sequences(), 2'000'001);
  // a long line of JSON Lines that is mostly the document, and one that is mostly something else
  std::string numbers;
  for (int i = 0; i < 10'000'000; ++i) numbers += "{},";
  for (const std::string& line :
       {"{\"text\":\"" + std::string(30'000'000, 'x') + "\"}", "{\"else\":[" + numbers + "0],\"text\":\"x\"}"}) {
    write_text(directory_ / "in.jsonl", line + "\n");
    EXPECT_LT(bytes_taken(directory_, directory_ / "in.jsonl"),
              kStated + kMemoryPerLineByte * static_cast<int64_t>(line.size()))
        << line.substr(0, 20);
  }
}
#endif

TEST(CheckBinHash, SeesAChangedByte) {
  const TempDir directory;
  write_text(directory / "in", "some text that is long enough");
  PrepareOptions options;
  options.inputs = {directory / "in"};
  options.output = directory / "d";
  const DatasetInfo info = prepare_dataset(options).info;
  std::string bytes = read_text(directory / "d.bin");
  bytes[10] = static_cast<char>(bytes[10] ^ 1);
  write_text(directory / "d.bin", bytes);
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { check_bin_hash(info, IndexedDataset(directory / "d")); }), "damaged"));
}

TEST(Statistics, CountsAndEntropy) {
  // given: ids 0, 1 and 2 at 1/2, 1/4 and 1/4 in the first two documents, different ids after them
  const TempDir directory;
  write_dataset(directory / "d", {{0, 1, 0}, {2, 0, 1, 0, 2}, {}, {7}});
  const IndexedDataset dataset(directory / "d");
  EXPECT_EQ(count_tokens(dataset, {0, 2}), (std::vector<int64_t>{4, 2, 2}));
  EXPECT_EQ(count_tokens(dataset, {3, 4}, 9), (std::vector<int64_t>{0, 0, 0, 0, 0, 0, 0, 1, 0}));
  EXPECT_TRUE(contains(message_of<DataError>([&] {
                         count_tokens(dataset, {0, 4}, 7);
                       }),
                       "token 8 of the dataset has id 7, expected 0 to 6"));
  EXPECT_NEAR(unigram_entropy(count_tokens(dataset, {0, 2})), 1.5 * std::log(2.0), 1e-12);
  EXPECT_EQ(unigram_entropy(count_tokens(dataset, {3, 4})), 0);
  EXPECT_EQ(unigram_entropy(count_tokens(dataset, {2, 3})), 0);
}

TEST(Statistics, Lengths) {
  const TempDir directory;
  write_dataset(directory / "d", {{0, 1, 0}, {2, 0, 1, 0, 2}, {}, {7}});
  const LengthSummary lengths = summarize_lengths(IndexedDataset(directory / "d"), {0, 4});
  EXPECT_EQ(lengths.least, 0);
  EXPECT_EQ(lengths.median, 3);
  EXPECT_EQ(lengths.most, 5);
  EXPECT_EQ(lengths.empty, 1);
}

}  // namespace
}  // namespace trivet
