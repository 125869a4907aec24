#include "engine/data/text_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <limits>
#include <string_view>
#include <utility>
#include <zlib.h>

#include "engine/data/files.h"
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
  explicit File(const std::string& path) : path_(path), stream_(gzopen(path.c_str(), "rb")), block_(kBlockBytes, '\0') {
    if (stream_ == nullptr) throw IoError(fmt::format("{}: cannot open it: {}", path_, std::strerror(errno)));
    gzbuffer(stream_, kBlockBytes);
  }
  ~File() { gzclose_r(stream_); }

  int64_t bytes_read() const { return std::max<int64_t>(gzoffset(stream_), 0); }

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
    throw DataError(fmt::format("{}: a document has more than {} bytes, which a dataset cannot hold: cut it", path_,
                                kMaxDocumentBytes));
  }

 private:
  void fill() {
    const int size = gzread(stream_, block_.data(), static_cast<unsigned>(block_.size()));
    // A cut-off file gives what it has and reports itself at its end only.
    int error = Z_OK;
    const char* text = gzerror(stream_, &error);
    if (error == Z_ERRNO) throw IoError(fmt::format("{}: cannot read it: {}", path_, std::strerror(errno)));
    if (error == Z_BUF_ERROR) throw DataError(fmt::format("{}: the compressed file is cut off", path_));
    if (size < 0 || error != Z_OK) throw DataError(fmt::format("{}: the compressed file is damaged: {}", path_, text));
    if ((path_.ends_with(".gz") || path_.ends_with(".dz")) && gzdirect(stream_) != 0)
      throw DataError(fmt::format("{}: is not compressed by gzip, as its name says", path_));
    rest_ = std::string_view(block_).substr(0, static_cast<size_t>(size));
  }

  std::string path_;
  gzFile stream_;
  std::string block_;
  std::string_view rest_;  // of block_, not yet read
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
