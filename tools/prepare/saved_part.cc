#include "tools/prepare/saved_part.h"

#include "base/files.h"
#include "base/json.h"

namespace trivet {
namespace {

// Calls each(name, value) for what is in the file.
template <class Part, class Each>
void visit(Part& part, Each each) {
  each("documents_of_file", part.read.documents);
  each("empty", part.read.empty);
  each("malformed", part.read.malformed);
  each("documents", part.documents);
  each("tokens", part.tokens);
  each("text_bytes", part.text_bytes);
  each("replaced_bytes", part.replaced_bytes);
  each("added_tokens", part.added_tokens);
}

}  // namespace

void write_saved_part(const std::string& path, const std::string& identity, const SavedPart& part) {
  nlohmann::json json{{"input", identity}, {"file", part.read.file}};
  visit(part, [&](const char* name, int64_t value) { json[name] = value; });
  write_file(path, json.dump(1) + "\n");
}

std::optional<SavedPart> read_saved_part(const std::string& path, const std::string& identity) {
  if (!file_exists(path)) return std::nullopt;
  const nlohmann::json json = parse_strict_json(read_small_file(path, 1 << 20), path);
  const JsonReader reader(json, path);
  if (reader.text("input") != identity) return std::nullopt;
  SavedPart part;
  part.read.file = static_cast<size_t>(reader.integer("file"));
  visit(part, [&](const char* name, int64_t& value) { value = reader.integer(name); });
  return part;
}

}  // namespace trivet
