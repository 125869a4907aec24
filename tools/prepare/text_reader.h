// TextReader: reads documents from text, JSON Lines, and JSON objects in tar archives (text_source.h defines the
// sources). Memory: a few MiB; for JSON Lines, five times the longest line. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/piece.h"
#include "base/utf8.h"
#include "base/words.h"
#include "tools/prepare/text_source.h"

namespace trivet {

// What counts as a document in a text file. In a JSON Lines file (.jsonl or .ndjson), each line is a document.
enum class DocumentMode {
  // Each file is a document, byte for byte.
  file,
  // For hard-wrapped text: a blank line ends the document, and runs of white space become one space.
  paragraph,
  // As `paragraph`, but a paragraph that begins with an indented line continues the document on a new line, as in a
  // dictionary entry.
  entry,
};

constexpr auto words_of(DocumentMode) { return word_list("file", "paragraph", "entry"); }

// A document, or a part of one longer than kPieceBytes. A part is longer than that only if it cannot be split there.
struct TextPiece {
  std::string text;
  bool begins = true, ends = true;  // whether the piece begins and ends the document
};
inline constexpr size_t kPieceBytes = piece(1 << 20, 1 << 12), kMaxJsonLine = 256 << 20;

// How to handle malformed JSON, or an object that lacks the document. stop: throw DataError; skip: skip and count it;
// replace: if only characters are invalid (bytes that are not UTF-8, lone surrogates as Python escapes them), replace
// them with U+FFFD.
enum class OnError { stop, skip, replace };
constexpr auto words_of(OnError) { return word_list("stop", "skip", "replace"); }

struct DocumentOptions {
  DocumentMode mode = DocumentMode::file;
  std::string json_key = "text";  // the member of a JSON object that is the document
  SourceOptions source = {};
  OnError on_error = OnError::stop;
};

// A reader's position, counted in documents: valid for any reader of the same files.
struct ReadPosition {
  size_t file = 0;
  int64_t documents = 0;  // returned from this file; the position is after the last of these
  // In all files so far: documents dropped because they have no text; malformed ones; those with replaced characters.
  int64_t empty = 0, malformed = 0, replaced = 0;
};

class TextReader {
 public:
  // Opens every file. Throws IoError if one is missing; DataError if one is truncated, damaged, not compressed as its
  // name says, or not text by its name or first bytes, such as .json or Parquet (the message suggests a remedy). UTF-16
  // causes a DataError once it is read. A UTF-8 byte order mark is dropped.
  TextReader(std::vector<std::string> files, DocumentOptions options);
  ~TextReader();

  // Finds where to split a long document, like Tokenizer::part_size(). Default: before white space if possible.
  using Cut = std::function<size_t(std::string_view text, size_t most)>;
  void cut_by(Cut cut) { cut_ = std::move(cut); }

  // Gets the next piece, which is not empty; returns false at the end. A document never spans two texts.
  bool next(TextPiece& piece);

  // The position after the last finished document. go_to() restores a position; call it before next().
  const ReadPosition& position() const { return position_; }
  void go_to(const ReadPosition& position);
  // Problems of the first malformed documents that were skipped since go_to().
  const std::vector<std::string>& problems() const { return problems_; }

  // Members skipped in the tar archives that were read to the end.
  const ExtensionCounts& other_members() const { return other_members_; }

  int64_t bytes_read() const;                           // stored bytes of the files, for progress reports
  int64_t bytes_total() const { return bytes_total_; }  // 0: unknown, with standard input

 private:
  bool open_next();
  void collect();
  bool read_json();
  bool add_words();
  bool has_text() const { return begun_ || !text_.empty(); }

  std::vector<std::string> files_;
  DocumentOptions options_;
  Cut cut_ = part_size;
  std::vector<int64_t> sizes_;  // of the files
  int64_t bytes_total_ = 0;
  int64_t bytes_done_ = 0;  // of finished files
  ReadPosition position_;
  std::vector<std::string> problems_;
  ExtensionCounts other_members_;
  std::optional<TextSource> source_;  // of files_[position_.file]
  bool open_ = false;                 // true while a text of source_ is open
  std::string_view block_;            // the part of the text's current block that is not yet consumed
  std::string json_line_;             // the beginning of a line of JSON Lines, or of an object
  int64_t line_number_ = 0;
  int64_t line_offset_ = 0;  // of the line in the text, in bytes
  std::string text_;         // of the current document, bytes read and not yet dropped
  size_t given_ = 0;         // bytes of text_ already returned
  bool begun_ = false;       // true once a piece of the document was returned
  bool ended_ = false;       // true if text_ contains the rest of the document
  // The current line with its leading white space, in modes paragraph and entry.
  struct Line {
    bool begun = false, indented = false, has_words = false;
  } line_;
  bool in_paragraph_ = false, space_ = false;
};

}  // namespace trivet
