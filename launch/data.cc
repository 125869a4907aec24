// trivet data prepare: creates a dataset from text or JSON Lines. trivet data inspect: shows and verifies a dataset.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/host.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/utf8.h"
#include "engine/data/dataset_info.h"
#include "engine/data/gpt_dataset.h"
#include "engine/data/statistics.h"
#include "engine/data/tokenizer.h"
#include "engine/data/training_data.h"
#include "launch/commands.h"
#include "launch/redrawn_line.h"
#include "tools/prepare/prepare.h"

namespace trivet {
namespace {

using Phase = PrepareProgress::Phase;

constexpr double kLeastTimed = 0.5;  // seconds; shorter times give no meaningful rate

std::string rate_text(double bytes_per_second) { return bytes_text(static_cast<int64_t>(bytes_per_second)) + "/s"; }

std::string described(const Tokenizer& tokenizer) {
  const auto named = [&](int32_t id) { return fmt::format("{} ({})", id, printable(tokenizer.piece(id))); };
  return fmt::format(
      "{}, {} ids, end of document {}{}", tokenizer.kind(), grouped(tokenizer.vocab_size()), named(tokenizer.eod()),
      tokenizer.bos() < 0 ? ", no beginning-of-document token" : ", beginning " + named(tokenizer.bos()));
}

class ProgressLine {
 public:
  void show(const PrepareProgress& progress) {
    const double now = now_seconds();
    bool due = line_.due();
    if (progress.phase != phase_ || !begun_) {
      phase_ = progress.phase;
      phase_begin_ = now;
      phase_bytes_ = progress.bytes_read;
      begun_ = true;
      // Training reports nothing until it is done: draw its only line immediately.
      due = line_.terminal() || phase_ == Phase::training;
      if (!due) line_.put_off();
    }
    if (due) line_.draw(text(progress, now - phase_begin_, phase_bytes_));
  }

  void clear() { line_.clear(); }

 private:
  // before: bytes read before the phase began, which do not count towards its rate.
  static std::string text(const PrepareProgress& progress, double seconds, int64_t before) {
    if (progress.phase == Phase::training) return "training the tokenizer";
    if (progress.phase == Phase::shuffling)
      return fmt::format("shuffling the documents, {:.1f} M tokens", static_cast<double>(progress.tokens) / 1e6);
    const auto read = static_cast<double>(progress.bytes_read), all = static_cast<double>(progress.bytes_total);
    const double speed = (read - static_cast<double>(before)) / seconds;
    const bool timed = speed > 0 && seconds >= kLeastTimed;
    std::string line = progress.phase == Phase::sampling ? "sampling" : "encoding";
    if (all > 0) line += fmt::format(" {:3.0f} %", 100 * read / all);
    if (timed && all > 0) line += fmt::format("  {} left", duration_text((all - read) / speed));
    const auto add = [&, columns = static_cast<size_t>(terminal_columns(STDERR_FILENO))](const std::string& part) {
      if (columns == 0 || line.size() + part.size() + 4 <= columns) line += "  " + part;
    };
    add(bytes_text(progress.bytes_read) + (all > 0 ? " of " + bytes_text(progress.bytes_total) : ""));
    if (timed) add(rate_text(speed));
    if (progress.tokens > 0) add(fmt::format("{:.1f} M tokens", static_cast<double>(progress.tokens) / 1e6));
    return line;
  }

  RedrawnLine line_;
  bool begun_ = false;
  Phase phase_ = Phase::encoding;
  double phase_begin_ = 0;
  int64_t phase_bytes_ = 0;
};

// ---- prepare

struct Interrupted : Error {
  using Error::Error;
  int exit_code() const override { return 128 + stop_signal(); }
};

void prepare(PrepareOptions options) {
  for (std::string& extension : options.text.source.extensions)  // ".md" and "*.md" are accepted too
    extension.erase(0, std::min(extension.find_first_not_of("*."), extension.size()));
  ExtensionCounts taken, passed_over;
  expand_inputs(options.inputs, options.text.source, &taken, &passed_over);
  if (!taken.empty()) {
    print_text(fmt::format("reads {} in the folders; skips {}{}", to_string(taken), to_string(passed_over),
                           passed_over.empty() ? "" : "; --extensions selects what is read"));
    flush_output();
  }
  ProgressLine line;
  watch_stop_signals("the command ends when this part of the text is done; the same command resumes from what it saved",
                     "the command ends immediately; the same command resumes from what it saved");
  const PrepareResult result = prepare_dataset(options, [&](const PrepareProgress& progress) {
    if (stop_signal() != 0)
      throw Interrupted(options.output +
                        ": stopped by a signal; the same command resumes from what it saved, if anything");
    line.show(progress);
  });
  line.clear();
  const DatasetInfo& info = result.info;
  const SavedPart& done = result.done;
  if (result.earlier.documents > 0)
    print_text(fmt::format("resumed after {} from an interrupted call", counted(result.earlier.documents, "document")));
  print_text(fmt::format("{}: {}, {} of {}, {} of text, {:.2f} bytes/token", options.output,
                         counted(info.documents, "document"), counted(info.tokens, "token"), name_of(result.token_type),
                         bytes_text(info.text_bytes),
                         static_cast<double>(info.text_bytes) / static_cast<double>(info.tokens)));
  const double seconds = std::max(result.encoding_seconds, 1e-9);
  print_text(fmt::format("tokenizer {}{}; encoded in {:.1f} s, {}, {:.2f} M tokens/s", described(*result.tokenizer),
                         options.vocab_size ? fmt::format(", trained in {:.1f} s", result.training_seconds) : "",
                         seconds, rate_text(static_cast<double>(done.text_bytes - result.earlier.text_bytes) / seconds),
                         static_cast<double>(done.tokens - result.earlier.tokens) / seconds / 1e6));
  if (done.added_tokens > 0)
    print_text(counted(done.added_tokens, "added token") +
               " of the tokenizer in the text; --special-as-text treats special ones as plain text");
  if (!result.other_members.empty())
    print_text(
        fmt::format("skipped in the archives: {}; --extensions selects what is read", to_string(result.other_members)));
  if (done.read.empty > 0) print_text(fmt::format("left out {}", counted(done.read.empty, "empty document")));
  if (done.read.malformed > 0) {
    print_text(fmt::format("left out {}, such as", counted(done.read.malformed, "malformed document")));
    for (const std::string& problem : result.problems) print_text("  " + problem);
  }
  if (done.read.replaced > 0)
    print_text(fmt::format("replaced invalid characters in {} by U+FFFD", counted(done.read.replaced, "document")));
  if (done.replaced_bytes > 0)
    fmt::print("replaced {} that {} not valid UTF-8 by U+FFFD\n", counted(done.replaced_bytes, "byte"),
               done.replaced_bytes == 1 ? "was" : "were");
}

// Adds an option that takes the name of an enum value.
template <class E, class Value>
void add_word(CLI::App& command, const char* name, Value& value, const char* help) {
  const auto read = [=, &value](const std::string& word) {
    const auto found = parse_word<E>(word);
    if (!found)
      throw ConfigError(fmt::format("{} is \"{}\", expected one of {}", name, word, fmt::join(words_of(E{}), ", ")));
    value = static_cast<Value>(*found);
  };
  command.add_option_function<std::string>(name, read, help);
}

void add_tokenizer_options(CLI::App& command, PrepareOptions& options) {
  command.add_option("--vocab-size", options.vocab_size, "train a tokenizer model with this many ids");
  command
      .add_option("--model", options.model,
                  "use this model: SentencePiece's; BPE's tokenizer.json (or its folder), or vocab.json and merges.txt")
      ->check(input_path());
  command.add_option(
      "--train-bytes", options.train_bytes,
      fmt::format("text to train on [512 per id; bpe: all]; SentencePiece takes {} to {} times as much memory",
                  kLeastMemoryPerTrainByte, kMostMemoryPerTrainByte));
  command.add_option("--eod-token", options.eod_token, "bpe: token that ends documents; required with --model");
  command.add_option("--bos-token", options.bos_token, "bpe: a special token to begin every document with [none]");
  command.add_flag("--special-as-text", options.special_as_text, "bpe: special tokens in the text are plain text");
  add_word<BpePattern>(command, "--pattern", options.pattern, "bpe, to train: split as gpt2 [default], llama3, qwen2");
  command.add_option("--special", options.special, "bpe, to train: more special tokens");
}

void add_text_options(CLI::App& command, PrepareOptions& options) {
  add_word<DocumentMode>(command, "--document", options.text.mode,
                         "what makes a document in a text file: file [default], paragraph (up to a blank line) or "
                         "entry (a paragraph and the indented ones that follow it)");
  command.add_option("--json-key", options.text.json_key, "member of a JSON object that is its document")
      ->capture_default_str();
  add_word<TextFormat>(command, "--format", options.text.source.format,
                       "text, jsonl or tar [from the file names; for -: text]");
  command
      .add_option("--extensions", options.text.source.extensions,
                  "what to read from folders [txt,jsonl,ndjson,tar] and archives [txt]; .json in an archive is one "
                  "object")
      ->delimiter(',');
  add_word<OnError>(command, "--on-error", options.text.on_error,
                    "on a malformed JSON object: stop [default], skip (and count) it, or replace invalid characters "
                    "by U+FFFD");
  command.add_option("--shuffle-documents", options.shuffle_documents, "shuffle the documents with this seed")
      ->option_text("SEED");
  command.add_flag_callback(
      "--no-append-eod", [&options] { options.append_eod = false; }, "do not end documents with a token");
}

void add_prepare(CLI::App& data) {
  const auto arguments = std::make_shared<PrepareOptions>();
  PrepareOptions& options = *arguments;
  CLI::App& command = *data.add_subcommand("prepare", "make a dataset, PREFIX.bin and .idx, from text or JSON Lines");
  command
      .add_option("--input", options.inputs,
                  "text, JSON Lines (.jsonl, .ndjson: one document per line) or WebDataset tar archives, "
                  "plain or in gzip, dictzip, zstd or xz (up to 500:1); folders of them; -: standard input")
      ->required();
  command.add_option("--output", options.output, "prefix of the files to write")->required();
  command
      .add_option("--tokenizer", options.tokenizer,
                  fmt::format("bytes, sentencepiece or bpe (byte-level; words of more than {} are split)",
                              bytes_text(kMostUncutBytes)))
      ->required();
  add_tokenizer_options(command, options);
  add_text_options(command, options);
  command.add_option(
      "--threads,--workers", options.threads,
      fmt::format("threads that encode [one per core]; memory, whatever the size of the input, is at most {}, {} per "
                  "thread (bpe: {} more), and {} times the longest line of JSON Lines (at most {})",
                  bytes_text(kMemoryBytes), bytes_text(kMemoryBytesPerThread), bytes_text(kBpeMemoryPerThread),
                  kMemoryPerLineByte, bytes_text(kMaxJsonLine)));
  command.add_flag("--force", options.force, "overwrite an existing dataset");
  command.callback([arguments] { prepare(*arguments); });
}

// ---- inspect

void print_frequent(const std::vector<int64_t>& counts, int64_t tokens, const Tokenizer* tokenizer) {
  std::vector<size_t> ids(counts.size());
  std::iota(ids.begin(), ids.end(), size_t{0});
  const auto shown = static_cast<std::ptrdiff_t>(std::min<size_t>(10, ids.size()));
  std::partial_sort(ids.begin(), ids.begin() + shown, ids.end(),
                    [&](size_t a, size_t b) { return counts[a] != counts[b] ? counts[a] > counts[b] : a < b; });
  fmt::print("\nmost frequent tokens\n");
  for (auto id = ids.begin(); id != ids.begin() + shown && counts[*id] > 0; ++id)
    fmt::print("{:>10}  {:>14}  {:5.2f} %  {}\n", *id, grouped(counts[*id]),
               100 * static_cast<double>(counts[*id]) / static_cast<double>(tokens),
               tokenizer ? printable(tokenizer->piece(static_cast<int32_t>(*id))) : "");
}

void print_document(const IndexedDataset& dataset, int64_t document, const Tokenizer* tokenizer) {
  constexpr int64_t kShownTokens = 128;
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(dataset.length(document), kShownTokens)));
  dataset.read(dataset.begin(document), tokens);
  fmt::print("\ndocument {}, {}\n", grouped(document), counted(dataset.length(document), "token"));
  if (tokenizer) {
    std::string text;
    try {
      text = tokenizer->decode(tokens);
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}.bin: document {}: {}", dataset.prefix(), document, error.what()));
    }
    fmt::print("{}", printable(text));
  } else {
    for (const int32_t token : tokens) fmt::print("{} ", token);
  }
  fmt::print("{}\n", dataset.length(document) > kShownTokens ? " [...]" : "");
}

void print_row(const char* name, const std::string& value) { fmt::print("{:<16} {}\n", name, value); }

// The contents of the index and PREFIX.json.
void print_summary(const IndexedDataset& dataset, const std::optional<DatasetInfo>& info, const Tokenizer* tokenizer) {
  print_row("dataset", dataset.prefix());
  print_row("documents", grouped(dataset.documents()));
  if (dataset.sequences() != dataset.documents()) print_row("sequences", grouped(dataset.sequences()));
  print_row("tokens", fmt::format("{} of {}, {}", grouped(dataset.tokens()), name_of(dataset.token_type()),
                                  bytes_text(dataset.tokens() * size_of(dataset.token_type()))));
  if (info && info->tokens > 0)
    print_row("text", fmt::format("{}, {:.3f} bytes/token", bytes_text(info->text_bytes),
                                  static_cast<double>(info->text_bytes) / static_cast<double>(info->tokens)));
  const auto parts = split_documents(DataConfig().split, dataset.sequences());
  print_row("default split", fmt::format("{} for training, then {} for validation (data.split)",
                                         counted(parts[0].size(), "document"), counted(parts[1].size(), "document")));
  print_row("tokenizer", tokenizer ? described(*tokenizer)
                                   : "unknown: there is no PREFIX.json, PREFIX.tokenizer.json or PREFIX.model");
  const LengthSummary lengths = summarize_lengths(dataset, {0, dataset.sequences()});
  print_row("document length",
            fmt::format("{} to {} tokens, median {}{}", grouped(lengths.least), grouped(lengths.most),
                        grouped(lengths.median),
                        lengths.empty > 0 ? fmt::format("; {} are empty", grouped(lengths.empty)) : ""));
}

// Reads all tokens: checks the content against its hash, and counts how often each token occurs.
void print_content(const IndexedDataset& dataset, const std::optional<DatasetInfo>& info, const Tokenizer* tokenizer) {
  const auto counts = count_tokens(dataset, {0, dataset.sequences()},
                                   tokenizer ? std::optional(tokenizer->vocab_size()) : std::nullopt);
  const double entropy = unigram_entropy(counts);
  const auto used = static_cast<int64_t>(counts.size()) - std::count(counts.begin(), counts.end(), 0);
  fmt::print("\n");
  if (info) {
    check_bin_hash(*info, dataset);
    print_row("verified", "the content has the hash that was written, " + info->bin_hash);
  }
  print_row("ids in use", fmt::format("{} of {}", grouped(used), grouped(static_cast<int64_t>(counts.size()))));
  print_row("unigram entropy", fmt::format("{:.4f} nats/token, perplexity {:.1f}", entropy, std::exp(entropy)));
  print_frequent(counts, dataset.tokens(), tokenizer);
}

void inspect(const std::string& prefix, int64_t shown) {
  const IndexedDataset dataset(prefix);
  const auto info = read_dataset_info(prefix);
  if (info) check_written_together(*info, dataset);
  const auto tokenizer = info || !tokenizer_file(prefix).empty() ? open_tokenizer(prefix) : nullptr;
  print_summary(dataset, info, tokenizer.get());
  // Prints documents from across the dataset: its beginning is seldom typical.
  const int64_t count = std::min(shown, dataset.sequences());
  for (int64_t i = 0; i < count; ++i)
    print_document(dataset, (2 * i + 1) * dataset.sequences() / (2 * count), tokenizer.get());
  flush_output();  // the rest takes a while if the dataset is large
  print_content(dataset, info, tokenizer.get());
}

void add_data_inspect(CLI::App& data) {
  auto prefix = std::make_shared<std::string>();
  auto shown = std::make_shared<int64_t>(3);
  CLI::App* command = data.add_subcommand("inspect", "check a dataset and show its contents");
  add_argument(*command, "PREFIX", *prefix, "prefix of the dataset's .bin and .idx");
  command->add_option("--documents", *shown, "how many documents to show [3]")->check(whole_number(0));
  command->callback([prefix, shown] {
    for (const std::string_view suffix : {".bin", ".idx"})
      if (prefix->ends_with(suffix) && file_exists(*prefix)) prefix->resize(prefix->size() - suffix.size());
    expect_dataset(*prefix);
    inspect(*prefix, *shown);
  });
}

}  // namespace

void add_data_command(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "make and inspect datasets");
  data->require_subcommand(1);
  add_prepare(*data);
  add_data_inspect(*data);
}

}  // namespace trivet
