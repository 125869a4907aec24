// Sources of text: plain or compressed files (gzip, dictzip, zstd, xz), tar archives of them, and standard input.
// Memory: two blocks per layer of compression and archive, plus the libraries' own. Throws DataError if a file expands
// to more than kMostGrowth times its size (an archive's members together): no text does, and a decompression bomb would
// fill the disk.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/words.h"

namespace trivet {

inline constexpr std::string_view kStandardInput = "-";
inline constexpr int64_t kMostGrowth = 500,
                         kFreeGrowth = 64 << 20;  // kMostGrowth applies to output of more than kFreeGrowth bytes

enum class TextFormat { text, jsonl, tar, json };  // json: one object; only in tar archives
constexpr auto words_of(TextFormat) { return word_list("text", "jsonl", "tar"); }

struct SourceOptions {
  std::optional<TextFormat> format =
      {};  // format of every file, never json; empty: by each file's name: .jsonl, .ndjson, .tar, or else text
  // Extensions, without .gz, .zst or .xz, of the inputs to read: files in folders (empty: txt, jsonl, ndjson and tar)
  // and members of tar archives (empty: txt), whose extension is everything after the first dot, as in WebDataset. A
  // .json member holds one object, and the document is one of its members.
  std::vector<std::string> extensions{};
};
using ExtensionCounts = std::map<std::string, int64_t>;  // ".txt"; "": no extension
std::string to_string(const ExtensionCounts& counts);    // "12 .json, 3 .jpg"

std::string_view without_compression(std::string_view name);  // without a suffix such as .gz
TextFormat format_of_file(std::string_view file, const SourceOptions& options);

// The input files, in the given order; for a folder, all files below it that are to be read, in byte order of their
// names. Throws ConfigError if a name does not exist, e.g. a pattern that the shell did not expand; DataError if a
// folder contains no file to read. taken, passed_over: if given, count the files in the folders.
std::vector<std::string> expand_inputs(const std::vector<std::string>& inputs, const SourceOptions& options,
                                       ExtensionCounts* taken = nullptr, ExtensionCounts* passed_over = nullptr);

// A stream of bytes, read in blocks.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // The next block, valid until the next call; empty at the end.
  std::string_view read() {
    const std::string_view block = ahead_.empty() ? next_block() : std::exchange(ahead_, {});
    given_ += std::ssize(block);
    return block;
  }
  int64_t given() const { return given_; }  // bytes returned by read() so far
  // The bytes that read() will return next.
  std::string_view peek() { return ahead_.empty() ? ahead_ = next_block() : ahead_; }

 private:
  virtual std::string_view next_block() = 0;
  std::string_view ahead_;
  int64_t given_ = 0;
};

// The texts of a file: a single one, or those of a tar archive's members.
class TextSource {
 public:
  // Compression is detected by content. Reading throws DataError if the file is not compressed as its name says, is
  // compressed twice, damaged or truncated, fails its checksum, or has anything but further such streams (or zeros, in
  // gzip) after the first; or if an archive member to be read is a link, or directly follows a member of the same name.
  // Members of the same name that are not adjacent are separate documents.
  TextSource(const std::string& file, SourceOptions options);
  ~TextSource();

  // Advances to the next text; false at the end. Throws DataError if an archive contains no member to read.
  bool next_text();
  // The current text: its name (in an archive the file's and the member's), its format, and its next bytes, empty at
  // the end.
  const std::string& name() const { return name_; }
  TextFormat format() const { return format_; }
  std::string_view read() { return text_->read(); }

  int64_t bytes_read() const;  // stored bytes of the file
  const ExtensionCounts& other_members() const { return other_members_; }

 private:
  class File;
  class Growth;
  class Gunzip;
  class Archive;

  static std::shared_ptr<ByteStream> decompressed(std::shared_ptr<ByteStream> stored, const std::string& name,
                                                  const std::shared_ptr<Growth>& growth);
  bool next_member();

  std::string file_name_, name_;
  SourceOptions options_;
  std::shared_ptr<File> file_;
  std::shared_ptr<Archive> archive_;
  std::shared_ptr<Growth> members_;  // of all members together
  std::shared_ptr<ByteStream> text_;
  ExtensionCounts other_members_;
  TextFormat format_ = TextFormat::text;
  bool found_ = false;  // a text was found
};

}  // namespace trivet
