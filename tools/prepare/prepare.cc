#include "tools/prepare/prepare.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <limits>
#include <list>
#include <ranges>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/content_hash.h"
#include "base/files.h"
#include "base/host_memory.h"
#include "base/json.h"
#include "base/piece.h"
#include "base/text.h"
#include "base/utf8.h"
#include "engine/data/bpe_tokenizer.h"
#include "engine/data/sentencepiece_tokenizer.h"
#include "engine/data/shuffle.h"
#include "kernels/base/trace.h"
#include "tools/prepare/bpe_trainer.h"
#include "tools/prepare/line_sample.h"
#include "tools/prepare/ordered_pipeline.h"

namespace trivet {
namespace {

constexpr size_t kBatchBytes = piece(1 << 20, 1 << 17);
constexpr int64_t kTrainBytesPerId = 512;
constexpr int64_t kMaxTrainedVocab = 1 << 20;
constexpr const char* kToTrain = "to train a tokenizer on";
// The suffixes of all files that a dataset may include; those that mark it as complete come last.
constexpr const char* kSuffixes[] = {".bin", ".tokenizer_config.json", ".tokenizer.json", ".model", ".idx", ".json"};

using Report = std::function<void(const PrepareProgress&)>;
using Phase = PrepareProgress::Phase;

double seconds_since(int64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns) * 1e-9; }

// The suffixes of a tokenizer's files next to the dataset.
std::vector<const char*> suffixes_of(std::string_view tokenizer) {
  if (tokenizer == "bpe") return {".tokenizer.json", ".tokenizer_config.json"};
  return tokenizer == "sentencepiece" ? std::vector{".model"} : std::vector<const char*>{};
}

// The special tokens to train: the end of document, the beginning if one is set, and the others.
std::vector<std::string> special_tokens(const PrepareOptions& options) {
  std::vector<std::string> tokens = {options.eod_token.empty() ? "<|endoftext|>" : options.eod_token};
  if (const std::string begin = options.begin(); !begin.empty() && begin != tokens[0]) tokens.push_back(begin);
  for (const std::string& token : options.special)
    if (std::ranges::find(tokens, token) == tokens.end()) tokens.push_back(token);
  return tokens;
}

void require(bool ok, std::string_view what) {
  if (!ok) throw ConfigError(std::string(what));
}

void check_tokenizer_options(const PrepareOptions& options) {
  const std::string& kind = options.tokenizer;
  const bool bpe = kind == "bpe";
  require(bpe || kind == "sentencepiece" || kind == "bytes",
          fmt::format("--tokenizer is \"{}\", expected bytes, sentencepiece or bpe", kind));
  require(kind != "bytes" || (!options.vocab_size && options.model.empty() && !options.train_bytes),
          "--vocab-size, --model and --train-bytes need --tokenizer sentencepiece or bpe; bytes has 257 ids");
  require(
      kind == "bytes" || options.vocab_size.has_value() != !options.model.empty(),
      fmt::format("--tokenizer {} needs either --vocab-size N, to train a model, or --model FILE, to use one", kind));
  require(options.model.empty() || !options.train_bytes, "--train-bytes has no effect with --model");
  const bool trains = options.pattern || !options.special.empty();
  require(bpe || !(trains || options.special_as_text || !options.eod_token.empty() || !options.bos_token.empty()),
          "--eod-token, --bos-token, --special-as-text, --pattern and --special need --tokenizer bpe");
  require(options.model.empty() || !trains, "--pattern and --special have no effect with --model, which has its own");
  require(!bpe || options.model.empty() || !options.eod_token.empty(),
          fmt::format("--tokenizer bpe --model {} needs --eod-token NAME, the special token that ends a document: {}",
                      options.model, eos_token_beside(options.model)));
  for (const std::string& token : special_tokens(options)) {
    std::string valid = token;
    require(!token.empty() && repair_utf8(valid) == 0, "a special token is empty, or not UTF-8");
  }
  if (options.vocab_size) {
    const int64_t least = bpe ? 256 + std::ssize(special_tokens(options)) : kMinSentencePieceVocab;
    require(least <= *options.vocab_size && *options.vocab_size <= kMaxTrainedVocab,
            fmt::format("--vocab-size is {}, expected {} to {}", *options.vocab_size, least, kMaxTrainedVocab));
  }
  if (options.train_bytes)
    require(*options.train_bytes > 0,
            fmt::format("--train-bytes is {}, expected a positive number", *options.train_bytes));
}

void check_options(const PrepareOptions& options, bool folders) {
  require(!options.inputs.empty(), "no input file");
  const std::string name = std::filesystem::path(options.output).filename().string();
  require(
      !name.empty() && name != "." && name != ".." && options.output.find(',') == std::string::npos,
      fmt::format("--output is \"{}\", expected a prefix without commas (which separate those of data.path) that ends "
                  "in the name of the dataset, such as data/corpus",
                  options.output));
  check_tokenizer_options(options);
  require(options.threads >= 0, fmt::format("--threads is {}, expected 0 or more", options.threads));
  const auto count = [&](auto is) { return std::ranges::count_if(options.inputs, is); };
  const SourceOptions& source = options.text.source;
  const auto of = [&](TextFormat format) {
    return count([&](auto& f) { return format_of_file(f, source) == format; });
  };
  const int64_t json = of(TextFormat::jsonl), tar = of(TextFormat::tar);  // a tar archive may contain texts and JSON
  require(json < std::ssize(options.inputs) || options.text.mode == DocumentMode::file,
          fmt::format("{} has one document in each JSON object: leave --document out", options.inputs[0]));
  require(
      json + tar > 0 || (options.text.json_key == DocumentOptions().json_key && options.text.on_error == OnError::stop),
      "--json-key and --on-error have no effect: none of the inputs is JSON Lines (.jsonl, .ndjson)");
  require(source.extensions.empty() || folders || tar > 0,
          "--extensions has no effect: none of the inputs is a folder or a tar archive (.tar)");
  const auto streams = count([](auto& file) { return file == kStandardInput; });
  require(streams < 2 && (streams == 0 || !options.vocab_size),
          "standard input cannot be read twice, as training a tokenizer needs: write it to a file");
  require(options.part_bytes > 0, "part_bytes is not positive");
}

// The prefix that encoding writes to: the dataset's or, before a shuffle, that of its documents in order.
std::string encoded_prefix(const PrepareOptions& options) {
  return options.output + (options.shuffle_documents ? ".in_order" : "");
}

void check_output(const PrepareOptions& options) {
  for (const char* suffix : kSuffixes)
    for (const std::string& input : options.inputs)
      if (std::error_code none; std::filesystem::equivalent(options.output + suffix, input, none))
        throw ConfigError(fmt::format("{} is an input, and would be overwritten: give --output another name", input));
  if (options.shuffle_documents)
    for (const char* suffix : {".bin", ".idx"})  // left by another dataset, or by a call that was killed
      if (const std::string path = encoded_prefix(options) + suffix; file_exists(path))
        throw ConfigError(
            fmt::format("{} exists, but --shuffle-documents first writes the documents there: move it away", path));
  for (const char* suffix : kSuffixes)
    if (const std::string path = options.output + suffix; !options.force && file_exists(path))
      throw ConfigError(fmt::format("{} exists; --force overwrites it", path));
}

size_t threads_of(const PrepareOptions& options) {
  return options.threads > 0 ? static_cast<size_t>(options.threads) : std::max(1u, std::thread::hardware_concurrency());
}

[[noreturn]] void refuse_no_text(const PrepareOptions& options, const TextReader& reader, const char* purpose) {
  const int64_t malformed = reader.position().malformed;
  throw DataError(fmt::format(
      "{}: no text {}{}", options.inputs[0], purpose,
      malformed == 0
          ? ""
          : fmt::format(": {} left out, such as {}", counted(malformed, "malformed document"), reader.problems()[0])));
}

std::vector<std::string> sample_lines(const PrepareOptions& options, const Report& report) {
  const MemoryPurpose purpose("the text to train the tokenizer on");
  TextReader reader(options.inputs, options.text);
  const bool bpe = options.tokenizer == "bpe";
  LineSample sample(options.train_bytes.value_or(kTrainBytesPerId * *options.vocab_size), !bpe);
  PrepareProgress progress{Phase::sampling, 0, reader.bytes_total(), 0, 0};
  for (TextPiece piece; reader.next(piece);) {
    std::string& text = piece.text;
    if (!bpe) repair_utf8(text);
    // SentencePiece reserves these two characters and would skip a line that contains one.
    std::replace_if(
        text.begin(), text.end(), [&](char c) { return !bpe && (c == '\0' || c == '\t'); }, ' ');
    sample.add(text);
    progress.bytes_read = reader.bytes_read();
    progress.documents += piece.ends;
    report(progress);
  }
  std::vector<std::string> lines = sample.take();
  if (lines.empty()) refuse_no_text(options, reader, kToTrain);
  return lines;
}

struct Batch {
  std::vector<TextPiece> pieces;
  int64_t bytes_read = 0;  // of the input, up to the end of this batch
  ReadPosition read;       // after this batch
  // The encoded pieces: all tokens, and the offsets at which documents end.
  std::vector<int32_t> tokens;
  std::vector<size_t> ends;
  int64_t text_bytes = 0, replaced_bytes = 0, added_tokens = 0;
};

bool read_batch(TextReader& reader, Batch& batch) {
  const MemoryPurpose purpose("a part of the text and the documents read ahead");
  size_t bytes = 0;
  for (TextPiece piece; bytes < kBatchBytes && reader.next(piece);) {
    bytes += piece.text.size() + sizeof piece;  // for short documents, the second term is larger
    batch.pieces.push_back(std::move(piece));
  }
  batch.bytes_read = reader.bytes_read();
  batch.read = reader.position();
  return !batch.pieces.empty();
}

// The bytes of the model to use.
std::string sentencepiece_model(const PrepareOptions& options, const Report& report) {
  if (!options.model.empty()) return read_small_file(options.model, kMaxSentencePieceBytes);
  const std::vector<std::string> lines = sample_lines(options, report);
  report({Phase::training, 0, 0, 0, 0});
  const MemoryPurpose purpose("training the tokenizer, 5 to 75 times its text");
  return train_sentencepiece(lines, *options.vocab_size);
}

// The count of each piece in the training text, or in a sample of it.
PieceCounts counted_pieces(const PrepareOptions& options, const Report& report) {
  const MemoryPurpose purpose("the different words of the text to train the tokenizer on");
  const BpeCutter cutter(splits_of(options.pattern.value_or(BpePattern::gpt2)));
  PieceCounts counts;
  if (options.train_bytes) {
    for (const std::string& text : sample_lines(options, report)) count_pieces(cutter, text, counts);
    return counts;
  }
  struct CountedBatch : Batch {
    PieceCounts counts;
  };
  TextReader reader(options.inputs, options.text);
  reader.cut_by([&](auto text, size_t most) { return cutter.part_size(text, most, [](size_t) { return true; }); });
  ordered_pipeline<CountedBatch>(
      threads_of(options), [&](CountedBatch& batch) { return read_batch(reader, batch); },
      [&](CountedBatch& batch) {
        for (const TextPiece& piece : std::exchange(batch.pieces, {})) count_pieces(cutter, piece.text, batch.counts);
      },
      [&](const CountedBatch& batch) {
        for (const auto& [piece, count] : batch.counts) counts[piece] += count;
        report({Phase::sampling, batch.bytes_read, reader.bytes_total(), 0, 0});
      });
  if (counts.empty()) refuse_no_text(options, reader, kToTrain);
  return counts;
}

BpeModel trained_bpe(const PrepareOptions& options, const Report& report) {
  const PieceCounts counts = counted_pieces(options, report);
  report({Phase::training, 0, 0, 0, 0});
  const MemoryPurpose purpose("training the tokenizer, 80 times the bytes of its different words");
  BpeModel model =
      train_bpe(counts, *options.vocab_size, options.pattern.value_or(BpePattern::gpt2), special_tokens(options));
  if (std::ssize(model.tokens) < *options.vocab_size)
    throw ConfigError(fmt::format("cannot train a BPE vocabulary of {} ids on this text: it suffices for {}",
                                  *options.vocab_size, model.tokens.size()));
  return model;
}

struct MadeTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::string> files;  // file contents, in the order of suffixes_of()
};

MadeTokenizer make_tokenizer(const PrepareOptions& options, const Report& report) {
  if (options.tokenizer == "bytes") return {make_bytes_tokenizer(), {}};
  const std::string name = options.model.empty() ? "the new model" : options.model;
  if (options.tokenizer == "sentencepiece") {
    const std::string model = sentencepiece_model(options, report);
    return {make_sentencepiece(model, name), {model}};
  }
  const BpeEnds ends{options.model.empty() ? special_tokens(options)[0] : options.eod_token, options.begin()};
  const bool as_it_is = !options.model.empty() && !is_bpe_vocab(options.model);
  std::string json = as_it_is ? read_small_file(options.model, kMaxBpeBytes) : "";
  BpeModel model = as_it_is                ? parse_bpe_model(json, options.model)
                   : options.model.empty() ? trained_bpe(options, report)
                                           : read_bpe_vocab(options.model, {ends.eod, ends.bos});
  const bool begins_so = model.begin == ends.bos;
  if (!begins_so && options.bos_token != "none") expect_no_begin(model, options.bos_token, options.model);
  model.begin = ends.bos;
  if (!as_it_is) json = to_tokenizer_json(model);
  else if (!begins_so) json = with_begin(json, model);
  const std::string config = to_tokenizer_config(ends, as_it_is ? tokenizer_config_of(options.model) : "");
  return {make_bpe(std::move(model), ends, options.special_as_text), {json, config}};
}

void encode_batch(const Tokenizer& tokenizer, const PrepareOptions& options, Batch& batch) {
  const MemoryPurpose purpose("encoding a part of the text");
  for (TextPiece& piece : std::exchange(batch.pieces, {})) {
    if (options.tokenizer == "sentencepiece") batch.replaced_bytes += repair_utf8(piece.text);
    batch.text_bytes += static_cast<int64_t>(piece.text.size());
    const std::vector<int32_t> tokens = tokenizer.encode(piece.text, !piece.begins);
    batch.added_tokens += tokenizer.count_added(tokens);
    if (piece.begins && tokenizer.bos() >= 0) batch.tokens.push_back(tokenizer.bos());
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
    if (!piece.ends) continue;
    if (options.append_eod) batch.tokens.push_back(tokenizer.eod());
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

// ---- resuming where a call was stopped

std::string partial_file(const PrepareOptions& options) { return options.output + ".partial.json"; }

// A hash of everything that the output's bytes depend on; empty if progress cannot be saved.
std::string identity(const PrepareOptions& options, const Tokenizer& tokenizer) {
  if (std::ranges::count(options.inputs, kStandardInput) > 0) return "";
  const DocumentOptions& text = options.text;
  std::string all =
      fmt::format("{} {} {} {} {} {} {}", tokenizer.fingerprint(), tokenizer.eod(), tokenizer.bos(),
                  options.special_as_text, options.append_eod, static_cast<int>(text.mode), text.json_key);
  for (const std::string& file : options.inputs)
    all += fmt::format("\n{} {} {} {} {}", file, InputFile(file).size(),
                       std::filesystem::last_write_time(file).time_since_epoch().count(),
                       word_of(format_of_file(file, text.source)), fmt::join(text.source.extensions, ","));
  return content_hash(all);
}

// Calls each(name, value) for each number in the partial file.
template <class Part, class Each>
void visit(Part& part, Each each) {
  each("documents_of_file", part.read.documents);
  each("empty", part.read.empty);
  each("malformed", part.read.malformed);
  each("replaced", part.read.replaced);
  each("documents", part.documents);
  each("tokens", part.tokens);
  each("text_bytes", part.text_bytes);
  each("replaced_bytes", part.replaced_bytes);
  each("added_tokens", part.added_tokens);
}

// The part that was saved for the same input; empty if none was.
SavedPart saved_part(const PrepareOptions& options, const std::string& identity, TokenType type) {
  const std::string path = partial_file(options);
  if (!identity.empty() && file_exists(path)) try {
      const nlohmann::json json = parse_strict_json(read_small_file(path, 1 << 20), path);
      const JsonReader reader(json, path);
      SavedPart part;
      part.read.file = static_cast<size_t>(reader.integer("file"));
      visit(part, [&](const char* name, int64_t& value) { value = reader.integer(name); });
      if (reader.text("input") == identity && part.read.file <= options.inputs.size() &&
          (part.read.malformed == 0 || options.text.on_error == OnError::skip) &&
          (part.read.replaced == 0 || options.text.on_error == OnError::replace) &&
          IndexedDatasetWriter::is_saved(encoded_prefix(options), type, part.documents, part.tokens))
        return part;
    } catch (const DataError&) {  // not a valid partial file: removed below
    }
  remove_file_if_exists(path);
  return {};
}

// Encodes the remaining documents of `reader`, and saves its progress from time to time.
void encode(const PrepareOptions& options, const Tokenizer& tokenizer, TextReader& reader, IndexedDatasetWriter& writer,
            const std::string& identity, SavedPart& done, const Report& report) {
  reader.cut_by([&](std::string_view text, size_t most) { return tokenizer.part_size(text, most); });
  reader.go_to(done.read);
  const int64_t part_tokens = options.part_bytes / size_of(token_type_for(tokenizer.vocab_size()));
  int64_t saved = done.tokens;
  bool whole = false;  // the written data ends with a complete document, as in `done`
  const auto save = [&](int64_t least) {
    if (!whole || identity.empty() || done.tokens - saved < least) return;
    writer.save();
    nlohmann::json json{{"input", identity}, {"file", done.read.file}};
    visit(done, [&](const char* name, int64_t value) { json[name] = value; });
    write_file(partial_file(options), json.dump(1) + "\n");  // durable
    saved = done.tokens;
  };
  const auto write = [&](const Batch& batch) {
    whole = false;
    write_batch(batch, writer);
    done = {batch.read,
            writer.documents(),
            writer.tokens(),
            done.text_bytes + batch.text_bytes,
            done.replaced_bytes + batch.replaced_bytes,
            done.added_tokens + batch.added_tokens};
    whole = !batch.ends.empty() && batch.ends.back() == batch.tokens.size();
    save(part_tokens);
    report({Phase::encoding, batch.bytes_read, reader.bytes_total(), done.documents, done.tokens});
  };
  try {
    ordered_pipeline<Batch>(
        threads_of(options), [&](Batch& batch) { return read_batch(reader, batch); },
        [&](Batch& batch) { encode_batch(tokenizer, options, batch); }, write);
  } catch (...) {
    save(std::max<int64_t>(part_tokens / 64, 1));  // re-encoding less than that takes no time
    throw;
  }
  if (done.documents == 0) refuse_no_text(options, reader, "in the input");
  done.read = reader.position();
}

// Rewrites the dataset at `prefix` with its documents in shuffled order, and deletes the original.
std::unique_ptr<IndexedDatasetWriter> shuffle(const std::string& prefix, const PrepareOptions& options,
                                              PrepareProgress progress, const Report& report) {
  constexpr int64_t kTokens = piece(1 << 20, 16);  // copied at a time
  struct Files {
    ~Files() {
      std::error_code ignored;
      for (const char* suffix : {".bin", ".idx"}) std::filesystem::remove(prefix + suffix, ignored);
    }
    const std::string& prefix;
  } const files{prefix};
  const MemoryPurpose purpose("the order of the documents");
  const IndexedDataset in_order(prefix);
  if (in_order.documents() > std::numeric_limits<uint32_t>::max())
    throw DataError(fmt::format("{}: found {} documents, expected at most 2^32 - 1 to shuffle", options.output,
                                in_order.documents()));
  auto writer = std::make_unique<IndexedDatasetWriter>(options.output, in_order.token_type());
  std::vector<int32_t> tokens;
  for (const uint32_t document :
       permutation(static_cast<uint32_t>(in_order.documents()), *options.shuffle_documents, 0)) {
    for (int64_t at = in_order.begin(document), end = in_order.begin(document + 1); at < end;) {
      tokens.resize(static_cast<size_t>(std::min(kTokens, end - at)));
      in_order.read(at, tokens);
      writer->add(tokens);
      at += std::ssize(tokens);
    }
    writer->end_document();
    progress.tokens = writer->tokens();
    report(progress);
  }
  return writer;
}

// The options, checked, with folders expanded to files.
PrepareOptions checked(PrepareOptions options) {
  const std::vector<std::string> inputs =
      std::exchange(options.inputs, expand_inputs(options.inputs, options.text.source));
  if (options.tokenizer == "bpe" && std::filesystem::is_directory(options.model))
    options.model = std::filesystem::path(options.model) / "tokenizer.json";
  check_options(options, inputs != options.inputs);
  check_output(options);
  return options;
}

}  // namespace

PrepareResult prepare_dataset(const PrepareOptions& given_options, const Report& given_report) {
  PrepareResult result;
  const PrepareOptions options = checked(given_options);
  const Report report = given_report ? given_report : [](const PrepareProgress&) {};
  // Fail on unreadable inputs and unwritable outputs before the tokenizer is trained.
  TextReader reader(options.inputs, options.text);
  if (const auto folder = std::filesystem::path(options.output).parent_path(); !folder.empty())
    make_folder(folder.string());
  const std::string info = options.output + ".json";
  OutputFile info_file(info, info + ".tmp");  // locked: a concurrent call with the same output fails here
  check_output(options);                      // again, because such a call may just have finished
  for (const std::string& prefix : {options.output, options.output + ".in_order"})
    for (const char* suffix : kSuffixes)
      if (const std::string left = prefix + suffix + ".tmp";
          !file_exists(partial_file(options)) && is_unlocked(left))  // left by a killed call
        remove_file_if_exists(left);
  std::list<OutputFile> files;
  for (const char* suffix : suffixes_of(options.tokenizer))
    files.emplace_back(options.output + suffix, options.output + suffix + ".tmp");

  int64_t begin = now_ns();
  auto [tokenizer, contents] = make_tokenizer(options, report);
  result.training_seconds = seconds_since(begin);
  begin = now_ns();

  result.token_type = token_type_for(tokenizer->vocab_size());
  const std::string input = identity(options, *tokenizer);
  SavedPart& done = result.done = saved_part(options, input, result.token_type);
  result.earlier = done;
  const std::string encoded = encoded_prefix(options);
  auto writer = std::make_unique<IndexedDatasetWriter>(encoded, result.token_type, done.documents, done.tokens);
  encode(options, *tokenizer, reader, *writer, input, done, report);
  if (options.shuffle_documents) {
    std::exchange(writer, nullptr)->finish();
    writer = shuffle(encoded, options, {Phase::shuffling, reader.bytes_total(), reader.bytes_total(), done.documents},
                     report);
  }
  result.problems = reader.problems();
  result.other_members = reader.other_members();
  result.info = {tokenizer->kind(), tokenizer->fingerprint(), tokenizer->vocab_size(), tokenizer->eod(), done.documents,
                 done.tokens,       done.text_bytes,          writer->bin_hash(),      tokenizer->bos()};
  if (options.tokenizer == "bpe") result.info.tokenizer_hash = content_hash(contents[0]);

  // All bytes are durable before any rename. PREFIX.json and .idx are removed first and renamed last: if they exist, so
  // do the files that they describe.
  auto content = contents.begin();
  for (OutputFile& file : files) {
    file.write(*content++);
    file.sync();
  }
  info_file.write(to_json(result.info));
  info_file.sync();
  writer->sync();
  for (const char* suffix : std::views::reverse(kSuffixes)) remove_file_if_exists(options.output + suffix);
  for (OutputFile& file : files) file.commit();
  writer->finish();
  info_file.commit();
  remove_file_if_exists(partial_file(options));
  result.tokenizer = std::move(tokenizer);
  result.encoding_seconds = seconds_since(begin);
  return result;
}

}  // namespace trivet
