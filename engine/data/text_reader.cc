#include "engine/data/text_reader.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <zlib.h>

#include "base/files.h"
#include "kernels/base/check.h"

namespace trivet {
namespace {

constexpr size_t kBlockBytes = 256 << 10;
constexpr size_t kMaxDocumentBytes = std::numeric_limits<int32_t>::max();  // what a dataset can hold as bytes

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Adds the words of `line` to `text`, a space between any two.
void append_words(std::string_view line, std::string& text, size_t paragraph) {
  for (size_t i = 0; i < line.size();) {
    const size_t begin = i;
    while (i < line.size() && is_space(line[i]) == is_space(line[begin])) ++i;
    if (is_space(line[begin])) continue;
    if (text.size() > paragraph) text += ' ';
    text += line.substr(begin, i - begin);
  }
}

}  // namespace

DocumentMode document_mode(const std::string& name) {
  if (name == "file") return DocumentMode::file;
  if (name == "paragraph") return DocumentMode::paragraph;
  if (name == "entry") return DocumentMode::entry;
  throw ConfigError(fmt::format("--document is \"{}\", expected file, paragraph or entry", name));
}

// One file, decompressed, by blocks and by lines.
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

  int64_t bytes_read() const { return at_ - stream_.avail_in; }

  // The rest of the current block, or the next one; empty at the end.
  std::string_view read() {
    if (rest_.empty()) fill();
    return std::exchange(rest_, {});
  }

  // The next line without its end; false at the end of the file.
  bool read_line(std::string& line, size_t most) {
    line.clear();
    for (bool any = false;; any = true) {
      if (rest_.empty()) fill();
      if (rest_.empty()) return any;
      const size_t end = rest_.find('\n');
      line += rest_.substr(0, end);
      if (line.size() > most) reject_long();
      if (end == std::string_view::npos) {
        rest_ = {};
        continue;
      }
      rest_.remove_prefix(end + 1);
      return true;
    }
  }

  [[noreturn]] void reject_long() const {
    throw DataError(fmt::format("{}: a document has more than {} bytes, which a dataset cannot hold: split it",
                                file_.path(), kMaxDocumentBytes));
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

  void fill() {
    size_t bytes = stream_.avail_in;
    if (compressed_) {
      bytes = decompress();
    } else {
      block_.swap(input_);
      refill();
    }
    rest_ = std::string_view(block_).substr(0, bytes);
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
  std::string_view rest_;  // of block_, not yet read
  z_stream stream_{};      // its input is the rest of input_, compressed or not
  int64_t at_ = 0;         // bytes of the file read so far
  bool compressed_ = false;
  bool between_ = false;  // a gzip member has ended
};

TextReader::TextReader(std::vector<std::string> files, DocumentMode mode) : files_(std::move(files)), mode_(mode) {
  for (const std::string& file : files_) bytes_total_ += InputFile(file).size();
}

TextReader::~TextReader() = default;

int64_t TextReader::bytes_read() const { return bytes_done_ + (file_ ? file_->bytes_read() : 0); }

bool TextReader::next(std::string& document) {
  for (;;) {
    if (!file_) {
      if (next_file_ == files_.size()) return false;
      file_ = std::make_unique<File>(files_[next_file_++]);
    }
    if (next_document(document)) return true;
    bytes_done_ += file_->bytes_read();
    file_.reset();
  }
}

// The next document of file_; false at its end.
bool TextReader::next_document(std::string& document) {
  document.clear();
  if (mode_ == DocumentMode::file) {
    for (std::string_view block = file_->read(); !block.empty(); block = file_->read()) {
      document += block;
      if (document.size() > kMaxDocumentBytes) file_->reject_long();
    }
    return !document.empty();
  }

  document.swap(ahead_);
  size_t paragraph = 0;  // where in the document the paragraph begins that is being read
  bool in_paragraph = !document.empty();
  std::string line;
  while (file_->read_line(line, kMaxDocumentBytes)) {
    const bool blank = std::all_of(line.begin(), line.end(), is_space);
    if (blank && mode_ == DocumentMode::paragraph && !document.empty()) return true;
    if (blank) {
      in_paragraph = false;
      continue;
    }
    if (!in_paragraph && !document.empty()) {
      if (!is_space(line[0])) {
        append_words(line, ahead_, 0);
        return true;
      }
      document += '\n';
    }
    if (!in_paragraph) paragraph = document.size();
    in_paragraph = true;
    append_words(line, document, paragraph);
    if (document.size() > kMaxDocumentBytes) file_->reject_long();
  }
  return !document.empty();
}

}  // namespace trivet
