// TextReader: reads the documents of text files, decompressing gzip (.gz, and dictzip's .dz). Memory: the longest
// document. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trivet {

enum class DocumentMode {
  // A file is a document, to the byte.
  file,
  // For hard-wrapped text: blank lines end a document, and runs of white space become one space.
  paragraph,
  // As paragraph, but a paragraph that begins with an indented line continues the document on a line of its own: an
  // entry of a dictionary.
  entry,
};

// From "file", "paragraph" or "entry"; any other is a ConfigError.
DocumentMode document_mode(const std::string& name);

class TextReader {
 public:
  // Opens every file; a missing one is an IoError. Gzip is detected by content. A .gz or .dz file without it is a
  // DataError, as is a gzip file that is truncated, fails its checksum, or has anything but gzip members and zeros
  // behind the first member.
  TextReader(std::vector<std::string> files, DocumentMode mode);
  ~TextReader();

  // The next document that is not empty; false at the end. No document spans files.
  bool next(std::string& document);

  int64_t bytes_read() const;  // of the files as stored: for progress
  int64_t bytes_total() const { return bytes_total_; }

 private:
  class File;

  bool next_document(std::string& document);

  std::vector<std::string> files_;
  DocumentMode mode_;
  int64_t bytes_total_ = 0;
  int64_t bytes_done_ = 0;  // of finished files
  size_t next_file_ = 0;
  std::unique_ptr<File> file_;
  std::string ahead_;  // mode entry: the paragraph that begins the next document
};

}  // namespace trivet
