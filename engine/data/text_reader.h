// TextReader: the documents of text files one after the other, decompressing gzip (.gz, and dictzip's .dz) as it goes.
// Memory: the longest document. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trivet {

enum class DocumentMode {
  // A file is a document, to the byte.
  file,
  // Blank lines end a document. Of hard-wrapped text: line ends, indentation and other runs of white space become one
  // space.
  paragraph,
  // As paragraph, but a paragraph that begins with an indented line continues the document on a line of its own: an
  // entry of a dictionary, a headword and what is set under it.
  entry,
};

// From "file", "paragraph" or "entry"; any other is a ConfigError.
DocumentMode document_mode(const std::string& name);

class TextReader {
 public:
  // Opens every file to see that it is there; a missing one is an IoError. Gzip is told by content, but a .gz or .dz
  // file that is none is a DataError, as is one that is cut off, fails its checksum or has anything but more compressed
  // text, or zeros, behind a compressed text.
  TextReader(std::vector<std::string> files, DocumentMode mode);
  ~TextReader();

  // The next document that is not empty; false where there is none. Documents do not reach over files.
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
