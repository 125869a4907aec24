#include "tools/prepare/text_reader.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fmt/format.h>
#include <span>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/utf8.h"

namespace trivet {
namespace {

constexpr size_t kMaxProblems = 5;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Formats that are sometimes mistaken for text, recognised by their first bytes or by their names.
struct Foreign {
  std::string_view magic, suffix, name, remedy;
};
constexpr Foreign kForeign[] = {
    {"PAR1", "", "Parquet", "write its documents to a JSON Lines file"},
    {"PK\3\4", "", "a zip archive", "unpack it"},
    {"", ".bz2", "compressed by bzip2", "decompress it, or compress it with zstd, xz or gzip"},
    {"", ".json", "JSON, whose syntax would become part of the text",
     "write its documents to a JSON Lines file (.jsonl), one object per line with the member \"text\"; to train on "
     "JSON itself, rename it; for JSON Lines under this name, add --format jsonl"},
};

// The beginning of a text, without a UTF-8 byte order mark.
std::string_view without_mark(std::string_view begin, const std::string& path) {
  if (begin.starts_with("\xff\xfe") || begin.starts_with("\xfe\xff"))
    throw DataError(fmt::format(
        "{0}: begins with the byte order mark of UTF-16, expected UTF-8: iconv -f UTF-16 -t UTF-8 {0} > NEW", path));
  if (begin.starts_with("\xef\xbb\xbf")) begin.remove_prefix(3);
  return begin;
}

void reject_foreign(const InputFile& file, bool by_name) {
  std::string head(static_cast<size_t>(std::min<int64_t>(8, file.size())), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  for (const Foreign& format : kForeign)
    if (format.magic.empty() ? by_name && without_compression(file.path()).ends_with(format.suffix)
                             : head.starts_with(format.magic))
      throw DataError(fmt::format(
          "{}: is {}, expected text, JSON Lines or a tar archive, plain or compressed by gzip, zstd or xz: {}",
          file.path(), format.name, format.remedy));
}

// Returns -1 if the escape \uXXXX at the start of the text is the first half of a surrogate pair, 1 if it is the
// second, 0 if it is neither.
int half_of_character(std::string_view text) {
  const bool is_d = text.size() >= 6 && (text.starts_with("\\ud") || text.starts_with("\\uD"));
  if (!is_d || !std::isxdigit(text[4]) || !std::isxdigit(text[5])) return 0;
  const auto is_one_of = [&](std::string_view digits) { return digits.find(text[3]) != digits.npos; };
  return is_one_of("89abAB") ? -1 : is_one_of("cdefCDEF") ? 1 : 0;
}

// Converts to standard JSON: the NaN and Infinity of Python's json become null and, if `replace`, invalid characters
// become U+FFFD, counted in `replaced`.
std::string standard_json(std::string json, bool replace, int64_t& replaced) {
  if (replace) replaced = repair_utf8(json);
  std::string out;
  bool quoted = false;
  for (std::string_view rest = json, mended; !rest.empty(); mended = {}) {
    size_t size = 1;
    if (quoted && rest[0] == '\\') {
      const int half = half_of_character(rest);
      size = half == 0 ? 2 : half < 0 && half_of_character(rest.substr(6)) > 0 ? 12 : 6;
      if (replace && size == 6) mended = "\\ufffd", ++replaced;
    }
    if (rest[0] == '"') quoted = !quoted;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"})
      if (!quoted && rest.starts_with(word)) size = word.size(), mended = "null";
    out += mended.empty() ? rest.substr(0, size) : mended;
    rest.remove_prefix(std::min(size, rest.size()));
  }
  return out;
}

// Returns the JSON object's member options.json_key. replaced: incremented by the number of replaced characters.
std::string json_document(const std::string& json, const std::string& where, const DocumentOptions& options,
                          int64_t& replaced) {
  const std::string& key = options.json_key;
  if (const size_t begin = json.find_first_not_of(" \t\r\n"); begin != json.npos && json[begin] == '[')
    throw DataError(where + ": found a JSON array, expected an object; jq -c '.[]' turns its objects into JSON Lines");
  std::string first_key;
  nlohmann::json object;
  try {
    object = parse_json_member(json, key, first_key);
  } catch (const nlohmann::json::exception&) {
    try {
      object = parse_json_member(standard_json(json, options.on_error == OnError::replace, replaced), key, first_key);
    } catch (const nlohmann::json::exception& error) {  // its message ends by quoting everything read so far
      const std::string problem = json_problem(error);
      throw DataError(fmt::format("{}: not valid JSON, expected an object for each document: {}", where,
                                  printable(problem.substr(0, std::min<size_t>(160, problem.find("; last read"))))));
    }
  }
  const JsonReader reader(object, where);
  if (!object.contains(key))
    reader.refuse(key.c_str(), "nothing",
                  fmt::format("the text of a document; --json-key names its member{}",
                              first_key.empty() ? "" : ", such as " + first_key));
  return reader.text(key.c_str());
}

}  // namespace

TextReader::TextReader(std::vector<std::string> files, DocumentOptions options)
    : files_(std::move(files)), options_(std::move(options)) {
  for (const std::string& path : files_) {
    if (path == kStandardInput) {
      sizes_.push_back(0);
      continue;
    }
    if (std::error_code ignored; std::filesystem::is_directory(path, ignored))
      throw DataError(fmt::format("{}: is a folder, expected a file", path));
    const InputFile file(path);
    reject_foreign(file, !options_.source.format);
    sizes_.push_back(file.size());
    bytes_total_ += file.size();
  }
  if (std::ranges::count(files_, kStandardInput) > 0) bytes_total_ = 0;
}

TextReader::~TextReader() = default;

int64_t TextReader::bytes_read() const { return bytes_done_ + (source_ ? source_->bytes_read() : 0); }

void TextReader::go_to(const ReadPosition& position) {
  position_ = {.file = position.file};
  for (size_t file = 0; file < position.file; ++file) bytes_done_ += sizes_.at(file);
  for (TextPiece piece; position_.documents < position.documents;)
    if (!next(piece)) throw DataError(files_.at(position.file) + ": has changed since a part of it was read");
  position_ = position;
  problems_.clear();
}

// Opens the next text; false at the end.
bool TextReader::open_next() {
  while (position_.file < files_.size()) {
    if (!source_) source_.emplace(files_[position_.file], options_.source);
    open_ = source_->next_text();
    if (open_) {
      const std::string_view first = source_->read();
      block_ = without_mark(first, source_->name());
      if (source_->name() == kStandardInput && !options_.source.format && block_.starts_with('{'))
        throw DataError("standard input begins with \"{\": add --format jsonl or --format text");
      line_offset_ = std::ssize(first) - std::ssize(block_);
      position_.empty += block_.empty() && source_->format() != TextFormat::jsonl;
      return true;
    }
    for (const auto& [extension, count] : source_->other_members()) other_members_[extension] += count;
    bytes_done_ += std::max(source_->bytes_read(), sizes_[position_.file]);
    source_.reset();
    ++position_.file;
    position_.documents = 0;
  }
  return false;
}

bool TextReader::next(TextPiece& piece) {
  std::string_view left;
  size_t size = 0;
  for (size_t most = kPieceBytes; size == 0; most *= 2) {  // grows as long as the text cannot be split
    while (!ended_ && text_.size() <= most) {
      if (!open_ && !open_next()) return false;
      collect();
    }
    left = std::string_view(text_).substr(given_);
    size = cut_(left, most);
  }
  piece = {std::string(left.substr(0, size)), !begun_, ended_ && size == left.size()};
  begun_ = !piece.ends;
  given_ += size;
  position_.documents += piece.ends;
  if (ended_ && begun_) return true;
  text_.erase(0, given_);
  given_ = 0;
  ended_ = false;
  return true;
}

// Reads some more of the text into text_.
void TextReader::collect() {
  if (block_.empty()) block_ = source_->read();
  const TextFormat format = source_->format();
  if (block_.empty()) {
    ended_ = json_line_.empty() ? has_text() : read_json();
    open_ = false;
    line_ = {};
    in_paragraph_ = false;
    line_number_ = 0;
  } else if (format == TextFormat::jsonl || format == TextFormat::json) {
    const size_t end = format == TextFormat::json ? block_.npos : block_.find('\n');
    json_line_ += block_.substr(0, end);
    if (json_line_.size() > kMaxJsonLine)
      throw DataError(
          fmt::format("{}: line {} has more than {} MiB, expected a JSON object for each document: split it",
                      source_->name(), line_number_ + 1, kMaxJsonLine >> 20));
    block_.remove_prefix(end == block_.npos ? block_.size() : end + 1);
    if (end != block_.npos) ended_ = read_json();
  } else if (options_.mode == DocumentMode::file) {
    text_ += std::exchange(block_, {});
  } else {
    ended_ = add_words();
  }
}

// Moves the document in json_line_ to text_; false if the document contains no text, or is skipped.
bool TextReader::read_json() {
  const std::string line = std::exchange(json_line_, {});
  std::string where = source_->name();
  if (source_->format() == TextFormat::jsonl)
    where += fmt::format(": line {} at byte {}", ++line_number_,
                         std::exchange(line_offset_, line_offset_ + std::ssize(line) + 1));
  if (std::ranges::all_of(line, is_space)) return false;
  try {
    int64_t replaced = 0;
    text_ = json_document(line, where, options_, replaced);
    position_.replaced += replaced > 0;
  } catch (const DataError& error) {
    if (options_.on_error != OnError::skip) throw;
    ++position_.malformed;
    if (problems_.size() < kMaxProblems) problems_.push_back(error.what());
    return false;
  }
  position_.empty += text_.empty();
  return !text_.empty();
}

// Appends the block's words to text_, separated by spaces. True if the document ended, false if only the block did.
bool TextReader::add_words() {
  while (!block_.empty()) {
    size_t size = 1;
    if (block_[0] == '\n') {
      const bool blank = !line_.has_words;
      line_ = {};
      space_ = true;
      if (blank) in_paragraph_ = false;
      if (blank && has_text() && options_.mode == DocumentMode::paragraph) return true;
    } else if (is_space(block_[0])) {
      if (!line_.begun) line_.indented = true;
      line_.begun = space_ = true;
    } else {
      if (!in_paragraph_ && has_text()) {
        if (!line_.indented) return true;
        text_ += '\n';
      } else if (space_ && has_text()) {
        text_ += ' ';
      }
      while (size < block_.size() && !is_space(block_[size])) ++size;
      text_ += block_.substr(0, size);
      line_.begun = line_.has_words = in_paragraph_ = true;
      space_ = false;
    }
    block_.remove_prefix(size);
  }
  return false;
}

}  // namespace trivet
