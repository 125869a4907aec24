#include "engine/data/text_reader.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <span>
#include <string_view>
#include <utility>
#include <zlib.h>

#include "base/files.h"
#include "base/json.h"
#include "base/utf8.h"
#include "kernels/base/check.h"

namespace trivet {
namespace {

constexpr size_t kBlockBytes = 256 << 10;
constexpr size_t kMaxJsonLine = 256 << 20;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::string_view without_gz(std::string_view path) {
  if (path.ends_with(".gz")) path.remove_suffix(3);
  return path;
}

// Formats that are taken for text now and then, by their first bytes or by their names.
struct Foreign {
  std::string_view magic, suffix, name, remedy;
};
constexpr Foreign kForeign[] = {
    {"\x28\xb5\x2f\xfd", "", "compressed by zstd", "decompress it (zstd -d), or compress it by gzip"},
    {"\xfd"
     "7zXZ",
     "", "compressed by xz", "decompress it (xz -d), or compress it by gzip"},
    {"PAR1", "", "Parquet", "write its documents to a JSON Lines file"},
    {"PK\3\4", "", "a zip archive", "unpack it"},
    {"", ".json", "JSON, whose syntax would become part of the text",
     "write its documents to a JSON Lines file (.jsonl), an object with the member \"text\" in each line; to train on "
     "JSON itself, rename it"},
};

// The beginning of a text, without the byte order mark of UTF-8.
std::string_view without_mark(std::string_view begin, const std::string& path) {
  if (begin.starts_with("\xff\xfe") || begin.starts_with("\xfe\xff"))
    throw DataError(fmt::format(
        "{0}: begins with the byte order mark of UTF-16, expected UTF-8: iconv -f UTF-16 -t UTF-8 {0} > NEW", path));
  if (begin.starts_with("\xef\xbb\xbf")) begin.remove_prefix(3);
  return begin;
}

void reject_foreign(const InputFile& file) {
  std::string head(static_cast<size_t>(std::min<int64_t>(8, file.size())), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  for (const Foreign& format : kForeign)
    if (format.magic.empty() ? without_gz(file.path()).ends_with(format.suffix) : head.starts_with(format.magic))
      throw DataError(fmt::format("{}: is {}, expected text or JSON Lines, plain or compressed by gzip: {}",
                                  file.path(), format.name, format.remedy));
}

}  // namespace

DocumentMode document_mode(const std::string& name) {
  if (name == "file") return DocumentMode::file;
  if (name == "paragraph") return DocumentMode::paragraph;
  if (name == "entry") return DocumentMode::entry;
  throw ConfigError(fmt::format("--document is \"{}\", expected file, paragraph or entry", name));
}

bool is_json_lines(std::string_view file) {
  const std::string_view path = without_gz(file);
  return path.ends_with(".jsonl") || path.ends_with(".ndjson");
}

// One file, decompressed, by blocks.
class TextReader::File {
 public:
  explicit File(const std::string& path) : file_(path), input_(kBlockBytes, '\0'), block_(kBlockBytes, '\0') {
    refill();
    compressed_ = stream_.avail_in >= 2 && input_.starts_with("\x1f\x8b");
    if (compressed_) check(inflateInit2(&stream_, MAX_WBITS + 16) == Z_OK, "zlib has no memory");  // 16: as gzip writes
    else if (path.ends_with(".gz") || path.ends_with(".dz"))
      throw DataError(fmt::format("{}: is not compressed by gzip, as its name says", path));
  }
  ~File() {
    if (compressed_) inflateEnd(&stream_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return file_.path(); }
  int64_t bytes_read() const { return at_ - stream_.avail_in; }

  // The next block, valid until the next call; empty at the end.
  std::string_view read() {
    size_t bytes = stream_.avail_in;
    if (compressed_) {
      bytes = decompress();
    } else {
      block_.swap(input_);
      refill();
    }
    return std::string_view(block_).substr(0, bytes);
  }

 private:
  // The next bytes of the file to the stream; false where there are none.
  bool refill() {
    const auto bytes = static_cast<size_t>(std::min<int64_t>(kBlockBytes, file_.size() - at_));
    file_.read_at(at_, std::as_writable_bytes(std::span(input_).first(bytes)));
    at_ += static_cast<int64_t>(bytes);
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(bytes);
    return bytes > 0;
  }

  // A block, less at the end.
  size_t decompress() {
    stream_.next_out = reinterpret_cast<Bytef*>(block_.data());
    stream_.avail_out = static_cast<uInt>(block_.size());
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0 && !refill()) {
        if (!between_) throw DataError(fmt::format("{}: the compressed file is truncated", file_.path()));
        break;
      }
      // Behind a gzip member comes another one, or zeros. Anything else is damage, which zlib's own file reader would
      // take for the end, losing the rest.
      if (between_ && *stream_.next_in == 0) {
        ++stream_.next_in;
        --stream_.avail_in;
        continue;
      }
      if (between_) inflateReset(&stream_);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      between_ = result == Z_STREAM_END;
      if (result != Z_OK && !between_)
        throw DataError(fmt::format("{}: the compressed file is damaged: {}", file_.path(),
                                    stream_.msg ? stream_.msg : zError(result)));
    }
    return block_.size() - stream_.avail_out;
  }

  const InputFile file_;
  std::string input_;  // as stored
  std::string block_;
  z_stream stream_{};  // its input is the rest of input_, compressed or not
  int64_t at_ = 0;     // bytes of the file read so far
  bool compressed_ = false;
  bool between_ = false;  // a gzip member has ended
};

TextReader::TextReader(std::vector<std::string> files, DocumentOptions options)
    : files_(std::move(files)), options_(std::move(options)) {
  for (const std::string& path : files_) {
    if (path == "-" || path == "/dev/stdin")
      throw DataError(path +
                      ": standard input cannot be read twice, as training a tokenizer needs: write it to a file");
    if (std::error_code ignored; std::filesystem::is_directory(path, ignored))
      throw DataError(fmt::format("{0}: is a folder, expected files: name those in it, such as {0}/*.txt", path));
    const InputFile file(path);
    reject_foreign(file);
    bytes_total_ += file.size();
  }
}

TextReader::~TextReader() = default;

int64_t TextReader::bytes_read() const { return bytes_done_ + (file_ ? file_->bytes_read() : 0); }

bool TextReader::next(TextPiece& piece) {
  std::string_view left;
  size_t size = 0;
  for (size_t most = kPieceBytes; size == 0; most *= 2) {  // more of a text that cannot be cut there
    while (!ended_ && text_.size() <= most) {
      if (!file_) {
        if (next_file_ == files_.size()) return false;
        file_ = std::make_unique<File>(files_[next_file_++]);
        json_ = is_json_lines(file_->path());
        block_ = without_mark(file_->read(), file_->path());
      }
      collect();
    }
    left = std::string_view(text_).substr(given_);
    size = cut_(left, most);
  }
  piece = {std::string(left.substr(0, size)), !begun_, ended_ && size == left.size()};
  begun_ = !piece.ends;
  given_ += size;
  if (ended_ && begun_) return true;
  text_.erase(0, given_);
  given_ = 0;
  ended_ = false;
  return true;
}

// Adds some more of the file to text_.
void TextReader::collect() {
  if (block_.empty()) block_ = file_->read();
  if (block_.empty()) {
    ended_ = json_line_.empty() ? has_text() : take_json_line();
    bytes_done_ += file_->bytes_read();
    file_.reset();
    line_ = {};
    in_paragraph_ = false;
    line_number_ = 0;
  } else if (json_) {
    const size_t end = block_.find('\n');
    json_line_ += block_.substr(0, end);
    if (json_line_.size() > kMaxJsonLine)
      throw DataError(
          fmt::format("{}: line {} has more than {} MiB, expected a JSON object for each document: split it",
                      file_->path(), line_number_ + 1, kMaxJsonLine >> 20));
    block_.remove_prefix(end == std::string_view::npos ? block_.size() : end + 1);
    if (end != std::string_view::npos) ended_ = take_json_line();
  } else if (options_.mode == DocumentMode::file) {
    text_ += std::exchange(block_, {});
  } else {
    ended_ = add_words();
  }
}

// The document of json_line_ to text_; false where it has no text.
bool TextReader::take_json_line() {
  const std::string where = fmt::format("{}: line {}", file_->path(), ++line_number_),
                    line = std::exchange(json_line_, {});
  if (std::all_of(line.begin(), line.end(), is_space)) return false;
  std::string first_key;
  const std::string& key = options_.json_key;
  const nlohmann::json object = parse_json_member(line, key, first_key);
  if (object.is_discarded())
    throw DataError(fmt::format("{}: not valid JSON, expected an object in each line of a JSON Lines file", where));
  const JsonReader reader(object, where);
  if (!object.contains(key))
    reader.refuse(key.c_str(), "nothing",
                  fmt::format("the text of a document; --json-key names its member{}",
                              first_key.empty() ? "" : ", such as " + first_key));
  text_ = reader.text(key.c_str());
  return !text_.empty();
}

// Words of the block to text_, a space between any two; until the document ends, which it returns, or the block.
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
