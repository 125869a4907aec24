#include "engine/data/dataset_info.h"

#include <cerrno>
#include <fmt/format.h>

#include "base/check.h"
#include "base/content_hash.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/data/bpe_model.h"
#include "engine/data/tokenizer.h"

namespace trivet {
namespace {

constexpr int64_t kInfoVersion = 1;
constexpr int64_t kMaxBytes = 1 << 20;

}  // namespace

std::string to_json(const DatasetInfo& info) {
  nlohmann::ordered_json json = {{"version", kInfoVersion},
                                 {"tokenizer", info.tokenizer},
                                 {"fingerprint", info.fingerprint},
                                 {"vocab_size", info.vocab_size},
                                 {"eod", info.eod},
                                 {"documents", info.documents},
                                 {"tokens", info.tokens},
                                 {"text_bytes", info.text_bytes},
                                 {"bin_xxh3_128", info.bin_hash}};
  if (info.bos >= 0) json["bos"] = info.bos;
  if (!info.tokenizer_hash.empty()) json["tokenizer_xxh3_128"] = info.tokenizer_hash;
  return json.dump(2) + "\n";
}

std::optional<DatasetInfo> read_dataset_info(const std::string& prefix) {
  const std::string path = prefix + ".json";
  if (!file_exists(path) && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  const nlohmann::json whole = parse_strict_json(read_small_file(path, kMaxBytes), path);
  const JsonReader reader(whole, path);
  reader.integer("version", kInfoVersion, kInfoVersion);
  DatasetInfo info;
  info.tokenizer = reader.text("tokenizer");
  if (info.tokenizer != "bytes" && info.tokenizer != "sentencepiece" && info.tokenizer != "bpe")
    reader.refuse("tokenizer", fmt::format("\"{}\"", info.tokenizer.substr(0, 60)),
                  "\"bytes\", \"sentencepiece\" or \"bpe\"");
  info.fingerprint = reader.text("fingerprint");
  info.vocab_size = reader.integer("vocab_size", 1, INT32_MAX);
  info.eod = reader.integer("eod", 0, info.vocab_size - 1);
  info.documents = reader.integer("documents");
  info.tokens = reader.integer("tokens");
  info.text_bytes = reader.integer("text_bytes");
  info.bin_hash = reader.text("bin_xxh3_128");
  if (whole.contains("bos")) info.bos = reader.integer("bos", 0, info.vocab_size - 1);
  if (whole.contains("tokenizer_xxh3_128")) info.tokenizer_hash = reader.text("tokenizer_xxh3_128");
  return info;
}

void check_written_together(const DatasetInfo& info, const IndexedDataset& dataset) {
  if (info.documents != dataset.documents() || info.tokens != dataset.tokens())
    throw DataError(
        fmt::format("{0}.json: counts {1} documents and {2} tokens, but {0}.idx has {3} and {4}: they were not "
                    "written together",
                    dataset.prefix(), info.documents, info.tokens, dataset.documents(), dataset.tokens()));
  const std::string model = dataset.prefix() + (info.tokenizer == "bpe" ? ".tokenizer.json" : ".model");
  if (info.tokenizer == "bytes" || !file_exists(model)) return;
  std::string found = content_hash(InputFile(model));
  if (found == info.tokenizer_hash) return;
  if (found != info.fingerprint && info.tokenizer == "bpe")
    found = bpe_fingerprint(parse_bpe_model(read_small_file(model, kMaxBpeBytes), model));
  if (found != info.fingerprint)
    throw DataError(
        fmt::format("{}: not the tokenizer that the dataset was made with: found fingerprint {}, expected {} from "
                    "{}.json{}; restore that tokenizer, or prepare the dataset again",
                    model, found, info.fingerprint, dataset.prefix(), bpe_difference(found, info.fingerprint)));
}

void check_bin_hash(const DatasetInfo& info, const IndexedDataset& dataset) {
  const InputFile bin(dataset.prefix() + ".bin");
  if (const std::string found = content_hash(bin); found != info.bin_hash)
    throw DataError(fmt::format("{}: its content hash is {}, expected {} from {}.json: the file is damaged", bin.path(),
                                found, info.bin_hash, dataset.prefix()));
}

}  // namespace trivet
