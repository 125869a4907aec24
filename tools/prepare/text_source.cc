#include "tools/prepare/text_source.h"

#include <algorithm>
#include <archive.h>
#include <archive_entry.h>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <span>
#include <unistd.h>
#include <zlib.h>

#include "base/check.h"
#include "base/files.h"
#include "base/piece.h"
#include "base/text.h"
#include "base/utf8.h"

namespace trivet {
namespace {

constexpr size_t kSourceBlock = piece(256 << 10, 1 << 12);

struct Compression {
  std::string_view name;
  std::vector<std::string_view> suffixes;
  std::string_view magic;
};
const Compression kCompressions[] = {{"gzip", {".gz", ".dz", ".tgz"}, "\x1f\x8b"},
                                     {"zstd", {".zst", ".tzst"}, "\x28\xb5\x2f\xfd"},
                                     {"xz", {".xz", ".txz"}, std::string_view("\xfd\x37zXZ\0", 6)}};
const std::vector<std::string_view> kTarNames = {".tar", ".tgz", ".tzst", ".txz"};

bool has_suffix(std::string_view name, const std::vector<std::string_view>& suffixes) {
  return std::ranges::any_of(suffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

[[noreturn]] void refuse_second_compression(const std::string& name) {
  throw DataError(name + ": is compressed twice, expected once");
}

// ---- files by name

bool is_read(std::string_view name, const SourceOptions& options) {
  const std::vector<std::string> usual{"txt", "jsonl", "ndjson", "tar", "tgz", "tzst", "txz"};
  return std::ranges::any_of(options.extensions.empty() ? usual : options.extensions,
                             [&](const std::string& extension) { return name.ends_with("." + extension); });
}

TextFormat format_of_member(std::string_view extension) {
  if (extension == "json") return TextFormat::json;
  return has_suffix(extension, {"jsonl", "ndjson"}) ? TextFormat::jsonl : TextFormat::text;
}

std::vector<std::string> in_folder(const std::string& folder, const SourceOptions& options, ExtensionCounts& taken,
                                   ExtensionCounts& passed_over) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  std::error_code error, no_file;  // no_file: of a dangling link
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string_view name = without_compression(at->path().native());
    if (!at->is_regular_file(no_file)) continue;
    const bool reads = is_read(name, options);
    const std::string_view file = name.substr(name.rfind('/') + 1);
    ++(reads ? taken : passed_over)[std::string(file.substr(std::min(file.size(), file.rfind('.'))))];
    if (reads) files.push_back(at->path());
  }
  if (error) throw IoError(fmt::format("{}: this folder or one in it cannot be read: {}", folder, error.message()));
  if (files.empty())
    throw DataError(fmt::format(
        "{0}: a folder with {1} to read, expected names that end in .txt, .jsonl, .ndjson, .tar, or as --extensions "
        "says; or name files one by one, such as --input {0}/*.json --format jsonl",
        folder, passed_over.empty() ? "nothing" : to_string(passed_over) + " and nothing"));
  std::ranges::sort(files);
  return files;
}

}  // namespace

std::string_view without_compression(std::string_view name) {
  for (const Compression& compression : kCompressions)
    for (const std::string_view suffix : compression.suffixes)
      if (name.ends_with(suffix) && !has_suffix(name, kTarNames)) return name.substr(0, name.size() - suffix.size());
  return name;
}

std::string to_string(const ExtensionCounts& counts) {
  std::string text;
  for (const auto& [extension, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count,
                        extension.empty() ? "without an extension" : printable_line(extension));
  return text.empty() ? "no file" : shortened(text, 400);
}

std::vector<std::string> expand_inputs(const std::vector<std::string>& inputs, const SourceOptions& options,
                                       ExtensionCounts* taken, ExtensionCounts* passed_over) {
  std::vector<std::string> files;
  ExtensionCounts read, others;
  for (const std::string& input : inputs) {
    std::error_code ignored;
    if (std::filesystem::is_directory(input, ignored)) {
      std::ranges::copy(in_folder(input, options, read, others), std::back_inserter(files));
      continue;
    }
    if (input != kStandardInput && !file_exists(input) && errno == ENOENT)
      throw ConfigError(fmt::format("{}: there is no such file or directory{}", input,
                                    input.find_first_of("*?[{") == input.npos
                                        ? ""
                                        : "; only the shell expands patterns and braces: leave out the quotes"));
    files.push_back(input);
  }
  if (taken) *taken = read;
  if (passed_over) *passed_over = others;
  return files;
}

TextFormat format_of_file(std::string_view file, const SourceOptions& options) {
  if (options.format) return *options.format;
  const std::string_view name = without_compression(file);
  if (has_suffix(name, kTarNames)) return TextFormat::tar;
  return has_suffix(name, {".jsonl", ".ndjson"}) ? TextFormat::jsonl : TextFormat::text;
}

// The file as it is stored, or standard input.
class TextSource::File : public ByteStream {
 public:
  explicit File(const std::string& path) : block_(kSourceBlock, '\0') {
    if (path != kStandardInput) file_.emplace(path);
  }
  int64_t bytes_read() const { return at_; }

 private:
  std::string_view next_block() override {
    size_t bytes = 0;
    if (file_) {
      bytes = static_cast<size_t>(std::min<int64_t>(kSourceBlock, file_->size() - at_));
      file_->read_at(at_, std::as_writable_bytes(std::span(block_).first(bytes)));
    }
    if (!file_) bytes = read_all(STDIN_FILENO, block_);
    if (!file_ && bytes < block_.size() && errno != 0)
      throw IoError(fmt::format("standard input: cannot be read: {}", std::strerror(errno)));
    at_ += static_cast<int64_t>(bytes);
    return std::string_view(block_).substr(0, bytes);
  }

  std::optional<InputFile> file_;
  std::string block_;
  int64_t at_ = 0;
};

// Limits how far a stream may expand from now on; for an archive, all members together.
class TextSource::Growth {
 public:
  explicit Growth(const ByteStream& in) : in_(in), begin_(in.given()) {}

  std::string_view add(std::string_view made, const std::string& name) {
    made_ += std::ssize(made);
    const int64_t stored = in_.given() - begin_;
    if (made_ > kFreeGrowth && made_ / kMostGrowth > stored)
      throw DataError(
          fmt::format("{}: {} of it hold more than {} of text, expected at most {} times its size: a "
                      "decompression bomb? If it is not, decompress it and prepare the plain file",
                      name, bytes_text(stored), bytes_text(made_), kMostGrowth));
    return made;
  }

 private:
  const ByteStream& in_;
  const int64_t begin_;
  int64_t made_ = 0;
};

// Uses zlib, because libarchive does not verify gzip checksums.
class TextSource::Gunzip : public ByteStream {
 public:
  Gunzip(std::shared_ptr<ByteStream> in, std::string name, std::shared_ptr<Growth> growth)
      : in_(std::move(in)), name_(std::move(name)), block_(kSourceBlock, '\0'), growth_(std::move(growth)) {
    check(inflateInit2(&stream_, MAX_WBITS + 16) == Z_OK, "zlib has no memory");  // 16: the gzip format
  }
  ~Gunzip() override { inflateEnd(&stream_); }
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;

 private:
  // Passes the next stored bytes to the stream; false at the end.
  bool refill() {
    const std::string_view bytes = in_->read();
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    return !bytes.empty();
  }

  std::string_view next_block() override {
    stream_.next_out = reinterpret_cast<Bytef*>(block_.data());
    stream_.avail_out = static_cast<uInt>(block_.size());
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0 && !refill()) {
        if (!between_) throw DataError(fmt::format("{}: the compressed file is truncated", name_));
        break;
      }
      // A gzip member may be followed only by another one, or by zeros. Anything else is corruption; zlib's own file
      // reader would treat it as the end and lose the rest.
      if (between_ && *stream_.next_in == 0) {
        ++stream_.next_in;
        --stream_.avail_in;
        continue;
      }
      if (between_) inflateReset(&stream_);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      between_ = result == Z_STREAM_END;
      if (result != Z_OK && !between_)
        throw DataError(
            fmt::format("{}: the compressed file is damaged: {}", name_, stream_.msg ? stream_.msg : zError(result)));
    }
    return growth_->add(std::string_view(block_).substr(0, block_.size() - stream_.avail_out), name_);
  }

  const std::shared_ptr<ByteStream> in_;
  const std::string name_;
  std::string block_;
  const std::shared_ptr<Growth> growth_;
  z_stream stream_{};
  bool between_ = false;  // a gzip member has ended
};

// Reads with libarchive: a compressed stream (Kind::compressed), or the members of a tar archive one after another.
class TextSource::Archive : public ByteStream {
 public:
  enum class Kind { compressed, tar };

  Archive(std::shared_ptr<ByteStream> in, std::string name, Kind kind, std::shared_ptr<Growth> growth)
      : in_(std::move(in)),
        name_(std::move(name)),
        kind_(kind),
        block_(kSourceBlock, '\0'),
        growth_(std::move(growth)),
        archive_(archive_read_new()) {
    check(archive_ != nullptr, "libarchive has no memory");
    if (kind == Kind::tar) {
      archive_read_support_format_tar(archive_.get());
      archive_read_set_options(archive_.get(), "read_concatenated_archives");
    } else {
      archive_read_support_filter_zstd(archive_.get());
      archive_read_support_filter_xz(archive_.get());
      archive_read_support_format_raw(archive_.get());
      archive_read_support_format_empty(archive_.get());
    }
    require(archive_read_open(archive_.get(), this, nullptr, feed, nullptr));
    if (kind == Kind::compressed) next_entry();
    if (archive_filter_count(archive_.get()) > 2) refuse_second_compression(name_);  // libarchive counts "none" too
  }

  // The name of the archive's next regular file; nullptr at the end.
  const char* next_entry() {
    archive_entry* entry = nullptr;
    do {
      const int result = archive_read_next_header(archive_.get(), &entry);
      ended_ = result == ARCHIVE_EOF;
      if (ended_ && kind_ == Kind::tar && !closed_)
        throw DataError(fmt::format("{}: the tar archive is cut off: it ends without a block of zeros", name_));
      if (ended_) return nullptr;
      require(result);
      link_ = archive_entry_hardlink(entry) ? "hard" : archive_entry_symlink(entry) ? "symbolic" : "";
    } while (kind_ == Kind::tar && archive_entry_filetype(entry) != AE_IFREG && link_.empty());
    const char* name =
        archive_entry_pathname_utf8(entry);  // the other function returns nullptr if the locale lacks a character
    if (!name) name = archive_entry_pathname(entry);
    return name ? name : "a member without a name";
  }
  std::string_view link() const { return link_; }  // "hard" or "symbolic": stores no bytes of its own; else ""

 private:
  struct Free {
    void operator()(archive* what) const { archive_read_free(what); }
  };

  static la_ssize_t feed(archive* reader, void* self, const void** data) {
    Archive& archive = *static_cast<Archive*>(self);
    try {
      const std::string_view block = archive.in_->read();
      *data = block.data();
      if (!block.empty()) {
        const std::string_view tail = block.substr(block.size() - std::min<size_t>(block.size(), 512));
        archive.closed_ = tail.find_first_not_of('\0') == tail.npos;
      }
      return static_cast<la_ssize_t>(block.size());
    } catch (...) {  // exceptions must not pass through C
      archive.failure_ = std::current_exception();
      archive_set_error(reader, EIO, "cannot be read");
      return ARCHIVE_FATAL;
    }
  }

  void require(la_ssize_t result) const {
    if (failure_) std::rethrow_exception(failure_);
    if (result >= 0 || result == ARCHIVE_WARN) return;
    const char* why = archive_error_string(archive_.get());
    throw DataError(fmt::format("{}: the {} is damaged or truncated: {}", name_,
                                kind_ == Kind::tar ? "tar archive" : "compressed file", why ? why : "no reason given"));
  }

  std::string_view next_block() override {
    if (ended_) return {};
    const la_ssize_t bytes = archive_read_data(archive_.get(), block_.data(), block_.size());
    require(bytes);
    return growth_->add(std::string_view(block_).substr(0, static_cast<size_t>(std::max<la_ssize_t>(bytes, 0))), name_);
  }

  const std::shared_ptr<ByteStream> in_;
  const std::string name_;
  const Kind kind_;
  std::string block_;
  const std::shared_ptr<Growth> growth_;  // also limits sparse members of a tar archive
  std::exception_ptr failure_;            // from in_
  std::string_view link_;
  bool ended_ = false, closed_ = false;  // closed_: the data ends with zeros
  std::unique_ptr<archive, Free> archive_;
};

std::shared_ptr<ByteStream> TextSource::decompressed(std::shared_ptr<ByteStream> stored, const std::string& name,
                                                     const std::shared_ptr<Growth>& growth) {
  const std::string_view head = stored->peek();
  for (const Compression& compression : kCompressions) {
    const bool is_named = has_suffix(name, compression.suffixes);
    // A zstd file may begin with a skippable frame.
    const bool skips =
        is_named && compression.name == "zstd" && head.substr(std::min<size_t>(1, head.size()), 3) == "*M\x18";
    if (head.starts_with(compression.magic) || skips) {
      std::shared_ptr<ByteStream> text;
      if (compression.name == "gzip") text = std::make_shared<Gunzip>(std::move(stored), name, growth);
      else text = std::make_shared<Archive>(std::move(stored), name, Archive::Kind::compressed, growth);
      if (std::ranges::any_of(kCompressions, [&](auto& inner) { return text->peek().starts_with(inner.magic); }))
        refuse_second_compression(name);
      return text;
    }
    if (is_named)
      throw DataError(fmt::format("{}: is {} compressed by {}, as its name says", name,
                                  head.empty() ? "empty, expected a file" : "not", compression.name));
  }
  return stored;
}

TextSource::TextSource(const std::string& file, SourceOptions options)
    : file_name_(file), name_(file), options_(std::move(options)), file_(std::make_shared<File>(file)) {
  text_ = decompressed(file_, file, std::make_shared<Growth>(*file_));
  format_ = format_of_file(file, options_);
  if (format_ != TextFormat::tar) return;
  if (text_->peek().empty()) throw DataError(file + ": is empty, expected a tar archive, which ends with zeros");
  archive_ = std::make_shared<Archive>(text_, file, Archive::Kind::tar, std::make_shared<Growth>(*text_));
  members_ = std::make_shared<Growth>(*archive_);
}

TextSource::~TextSource() = default;

int64_t TextSource::bytes_read() const { return file_->bytes_read(); }

bool TextSource::next_text() { return archive_ ? next_member() : !std::exchange(found_, true); }

bool TextSource::next_member() {
  while (const char* entry = archive_->next_entry()) {
    const std::string_view path = entry, name = path.substr(path.rfind('/') + 1);  // npos + 1 == 0
    const size_t dot = name.find('.');
    const std::string extension(dot == name.npos ? "" : without_compression(name.substr(dot + 1)));
    const bool reads =
        options_.extensions.empty() ? extension == "txt" : std::ranges::count(options_.extensions, extension) > 0;
    if (!reads || name.starts_with("__")) {
      ++other_members_[extension.empty() ? "" : "." + extension];
      continue;
    }
    const std::string last = std::exchange(name_, fmt::format("{}: {}", file_name_, printable_line(path)));
    format_ = format_of_member(extension);
    if (name_ == last) throw DataError(fmt::format("{}: is a duplicate, expected each member of a tar once", name_));
    if (const std::string_view link = archive_->link(); !link.empty())
      throw DataError(fmt::format("{}: a {} link to another file, expected the file itself: tar --{}dereference", name_,
                                  link, link == "hard" ? "hard-" : ""));
    text_ = decompressed(archive_, name_, members_);
    return found_ = true;
  }
  if (found_) return false;
  throw DataError(fmt::format("{}: found {} in it, expected members named .{}{}", file_name_, to_string(other_members_),
                              fmt::join(options_.extensions, " or ."),
                              options_.extensions.empty() ? "txt; --extensions names others" : ""));
}

}  // namespace trivet
