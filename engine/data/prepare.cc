#include "engine/data/prepare.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <thread>

#include "base/files.h"
#include "base/ordered_pipeline.h"
#include "base/utf8.h"
#include "engine/data/line_sample.h"
#include "engine/data/sentencepiece_tokenizer.h"
#include "engine/data/tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/trace.h"

namespace trivet {
namespace {

constexpr size_t kBatchBytes = 1 << 20;
constexpr int64_t kTrainBytesPerId = 512;
constexpr int64_t kMaxSentencePieceVocab = 1 << 20;

using Report = std::function<void(const PrepareProgress&)>;
using Phase = PrepareProgress::Phase;

double seconds_since(int64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns) * 1e-9; }

void check_options(const PrepareOptions& options) {
  const bool sentencepiece = options.tokenizer == "sentencepiece";
  const auto require = [](bool ok, std::string_view what) {
    if (!ok) throw ConfigError(std::string(what));
  };
  require(!options.inputs.empty(), "no input file");
  const std::string name = std::filesystem::path(options.output).filename().string();
  require(!name.empty() && name != "." && name != "..",
          fmt::format("--output is \"{}\", expected a prefix that ends in the name of the dataset, such as data/corpus",
                      options.output));
  require(sentencepiece || options.tokenizer == "bytes",
          fmt::format("--tokenizer is \"{}\", expected bytes or sentencepiece", options.tokenizer));
  require(sentencepiece || (!options.vocab_size && options.model.empty() && !options.train_bytes),
          "--vocab-size, --model and --train-bytes need --tokenizer sentencepiece; bytes has 257 ids");
  require(!sentencepiece || options.vocab_size.has_value() != !options.model.empty(),
          "--tokenizer sentencepiece needs either --vocab-size N, to train a model, or --model FILE, to use one");
  require(options.model.empty() || !options.train_bytes, "--train-bytes has no use with --model");
  if (options.vocab_size)
    require(kMinSentencePieceVocab <= *options.vocab_size && *options.vocab_size <= kMaxSentencePieceVocab,
            fmt::format("--vocab-size is {}, expected {} to {}", *options.vocab_size, kMinSentencePieceVocab,
                        kMaxSentencePieceVocab));
  if (options.train_bytes)
    require(*options.train_bytes > 0,
            fmt::format("--train-bytes is {}, expected a positive number", *options.train_bytes));
  require(options.threads >= 0, fmt::format("--threads is {}, expected 0 or more", options.threads));
  const auto json = std::ranges::count_if(options.inputs, is_json_lines);
  require(json < std::ssize(options.inputs) || options.text.mode == DocumentMode::file,
          fmt::format("{} is JSON Lines, a document a line: leave --document out", options.inputs[0]));
  require(json > 0 || options.text.json_key == DocumentOptions().json_key,
          "--json-key has no use: none of the inputs is JSON Lines (.jsonl, .ndjson)");
}

void check_output(const PrepareOptions& options) {
  for (const char* suffix : {".bin", ".idx", ".json", ".model"})
    if (const std::string path = options.output + suffix; !options.force && file_exists(path))
      throw ConfigError(fmt::format("{} exists; --force overwrites it", path));
}

std::vector<std::string> sample_lines(const PrepareOptions& options, const Report& report) {
  const MemoryPurpose purpose("the text to train the tokenizer on");
  TextReader reader(options.inputs, options.text);
  LineSample sample(options.train_bytes.value_or(kTrainBytesPerId * *options.vocab_size));
  PrepareProgress progress{Phase::sampling, 0, reader.bytes_total(), 0, 0};
  for (TextPiece piece; reader.next(piece);) {
    std::string& text = piece.text;
    repair_utf8(text);
    // The library reserves these two and would skip a line that has one.
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c == '\0' || c == '\t'; }, ' ');
    sample.add(text);
    progress.bytes_read = reader.bytes_read();
    progress.documents += piece.ends;
    report(progress);
  }
  return sample.take();
}

// The bytes of the model to use.
std::string sentencepiece_model(const PrepareOptions& options, const Report& report) {
  if (!options.model.empty()) return read_small_file(options.model, kMaxSentencePieceBytes);
  const std::vector<std::string> lines = sample_lines(options, report);
  if (lines.empty()) throw DataError(fmt::format("{}: no text to train a tokenizer on", options.inputs[0]));
  report({Phase::training, 0, 0, 0, 0});
  const MemoryPurpose purpose("training the tokenizer, 5 to 75 times its text");
  return train_sentencepiece(lines, *options.vocab_size);
}

struct Batch {
  std::vector<TextPiece> pieces;
  int64_t bytes_read = 0;  // of the input, with this batch
  // The encoded pieces: all tokens, and where documents end in them.
  std::vector<int32_t> tokens;
  std::vector<size_t> ends;
  int64_t text_bytes = 0, replaced_bytes = 0;
};

bool read_batch(TextReader& reader, Batch& batch) {
  const MemoryPurpose purpose("a part of the text and the documents read ahead");
  size_t bytes = 0;
  for (TextPiece piece; bytes < kBatchBytes && reader.next(piece);) {
    bytes += piece.text.size() + sizeof piece;  // of short documents the second is more
    batch.pieces.push_back(std::move(piece));
  }
  batch.bytes_read = reader.bytes_read();
  return !batch.pieces.empty();
}

void encode_batch(const Tokenizer& tokenizer, bool repair, Batch& batch) {
  const MemoryPurpose purpose("encoding a part of the text");
  for (TextPiece& piece : std::exchange(batch.pieces, {})) {
    if (repair) batch.replaced_bytes += repair_utf8(piece.text);
    batch.text_bytes += static_cast<int64_t>(piece.text.size());
    const std::vector<int32_t> tokens = tokenizer.encode(piece.text, !piece.begins);
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
    if (!piece.ends) continue;
    batch.tokens.push_back(tokenizer.eod());
    batch.ends.push_back(batch.tokens.size());
  }
}

void write_batch(const Batch& batch, IndexedDatasetWriter& writer) {
  size_t begin = 0;
  for (const size_t end : batch.ends) {
    writer.add_document(std::span(batch.tokens).subspan(begin, end - begin));
    begin = end;
  }
  writer.add(std::span(batch.tokens).subspan(begin));
}

// Encodes the documents of `reader`, each with its end of document.
void encode(const PrepareOptions& options, const Tokenizer& tokenizer, TextReader& reader, IndexedDatasetWriter& writer,
            PrepareResult& result, const Report& report) {
  const size_t threads =
      options.threads > 0 ? static_cast<size_t>(options.threads) : std::max(1u, std::thread::hardware_concurrency());
  ordered_pipeline<Batch>(
      threads, [&](Batch& batch) { return read_batch(reader, batch); },
      [&](Batch& batch) { encode_batch(tokenizer, options.tokenizer != "bytes", batch); },
      [&](const Batch& batch) {
        write_batch(batch, writer);
        result.info.text_bytes += batch.text_bytes;
        result.replaced_bytes += batch.replaced_bytes;
        report({Phase::encoding, batch.bytes_read, reader.bytes_total(), writer.documents(), writer.tokens()});
      });
  if (writer.documents() == 0) throw DataError(fmt::format("{}: no text in the input", options.inputs[0]));
}

}  // namespace

PrepareResult prepare_dataset(const PrepareOptions& options, const Report& given_report) {
  check_options(options);
  check_output(options);
  const Report report = given_report ? given_report : [](const PrepareProgress&) {};
  PrepareResult result;
  const bool bytes = options.tokenizer == "bytes";
  // What cannot be read or written fails before the tokenizer is trained.
  TextReader reader(options.inputs, options.text);
  if (const auto folder = std::filesystem::path(options.output).parent_path(); !folder.empty())
    make_folder(folder.string());
  OutputFile info_file(options.output + ".json");                    // locked: another call with this output ends here
  check_output(options);                                             // again: such a call may have ended just now
  for (const char* suffix : {".bin.tmp", ".idx.tmp", ".model.tmp"})  // of a call that was killed
    if (is_unlocked(options.output + suffix)) remove_file_if_exists(options.output + suffix);
  std::optional<OutputFile> model_file;
  if (!bytes) model_file.emplace(options.output + ".model");

  int64_t begin = now_ns();
  const std::string model = bytes ? "" : sentencepiece_model(options, report);
  const auto tokenizer = bytes ? make_bytes_tokenizer()
                               : make_sentencepiece(model, options.model.empty() ? "the new model" : options.model);
  result.training_seconds = seconds_since(begin);
  begin = now_ns();

  result.token_type = token_type_for(tokenizer->vocab_size());
  IndexedDatasetWriter writer(options.output, result.token_type);
  encode(options, *tokenizer, reader, writer, result, report);
  result.info = {tokenizer->kind(),  tokenizer->fingerprint(), tokenizer->vocab_size(), tokenizer->eod(),
                 writer.documents(), writer.tokens(),          result.info.text_bytes,  writer.bin_hash()};

  // All bytes are durable before a name changes. PREFIX.json and .idx are removed first and renamed last: where they
  // exist, the files that they describe do.
  if (model_file) {
    model_file->write(model);
    model_file->sync();
  }
  info_file.write(to_json(result.info));
  info_file.sync();
  writer.sync();
  for (const char* suffix : {".json", ".idx", ".model"}) remove_file_if_exists(options.output + suffix);
  if (model_file) model_file->commit();
  writer.finish();
  info_file.commit();
  result.encoding_seconds = seconds_since(begin);
  return result;
}

}  // namespace trivet
