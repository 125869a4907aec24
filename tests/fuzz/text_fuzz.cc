// A text file for `data prepare`: it is refused with a DataError, or gives its documents, in consistent pieces. The
// input is one byte for the format, then the file:
//   J   JSON Lines, compared with the documents of another reader;  j   the same, compressed with gzip
//   F   one document, byte for byte;   P paragraphs;   E entries;   f, p, e   the same, compressed
//   T   a tar archive;   Z   JSON Lines compressed with zstd;   X   text compressed with xz
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/fuzz/folder.h"
#include "tools/prepare/text_reader.h"

namespace {

using Documents = std::vector<std::string>;

// Returns nullopt if the file is refused.
std::optional<Documents> read_documents(const std::string& path, trivet::DocumentMode mode) {
  Documents documents;
  try {
    trivet::TextReader reader({path}, {.mode = mode});
    trivet::TextPiece piece;
    for (bool open = false; reader.next(piece); open = !piece.ends) {
      if (piece.text.empty() || piece.text.size() > trivet::kPieceBytes || piece.begins == open) std::abort();
      if (piece.begins) documents.emplace_back();
      documents.back() += piece.text;
    }
    if (reader.bytes_read() != reader.bytes_total()) std::abort();
  } catch (const trivet::DataError&) {
    return {};
  }
  return documents;
}

// The documents of JSON Lines as the JSON library alone reads them. To it, a zero byte ends the line.
std::optional<Documents> documents_of(const std::string& text) {
  Documents documents;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (std::ranges::all_of(line, [](unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r'); })) continue;
    if (line.find('\0') != std::string::npos) return {};
    int texts = 0;  // members named "text"; the library keeps only the last
    const auto count = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
      texts += event == nlohmann::json::parse_event_t::key && depth == 1 && parsed == "text";
      return true;
    };
    const auto object = nlohmann::json::parse(line, count, false);
    if (texts > 1 || !object.is_object() || !object.contains("text") || !object["text"].is_string()) return {};
    if (const std::string document = object["text"]; !document.empty()) documents.push_back(document);
  }
  return documents;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const trivet::fuzz::Folder folder;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const char kind = static_cast<char>(std::toupper(data[0]));
  const std::string name = kind == 'T' ? "/d.tar" : kind == 'Z' ? "/d.jsonl.zst" : kind == 'X' ? "/d.txt.xz" : "";
  const bool compressed = kind != static_cast<char>(data[0]) || !name.empty();
  const std::string path =
      folder.path +
      (!name.empty() ? name : (kind == 'J' ? "/d.jsonl" : "/d.txt") + std::string(compressed ? ".gz" : ""));
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  using enum trivet::DocumentMode;
  const auto documents = read_documents(path, kind == 'P' ? paragraph : kind == 'E' ? entry : file);
  if (compressed || !documents) {
    // A file that begins like another format or like UTF-16 is refused, whatever its content.
    const bool foreign = text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff") ||
                         text.starts_with("\x28\xb5\x2f\xfd") ||
                         text.starts_with(
                             "\xfd"
                             "7zXZ") ||
                         text.starts_with("PAR1") || text.starts_with("PK\3\4") || text.starts_with("\x1f\x8b");
    if (!compressed && !foreign && (kind != 'J' || documents_of(text))) std::abort();
    return 0;
  }
  for (const char* magic : {"\x1f\x8b", "\x28\xb5\x2f\xfd", "\xfd\x37zXZ"})
    if (text.starts_with(magic)) return 0;         // decompressed, whatever the name
  if (text.starts_with("\xef\xbb\xbf")) return 0;  // a byte order mark is not text
  if (kind == 'J' && documents != documents_of(text)) std::abort();
  if (kind == 'F' && (text.empty() ? !documents->empty() : *documents != Documents{text})) std::abort();
  return 0;
}
