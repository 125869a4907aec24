#include "engine/data/dataset_info.h"

#include <algorithm>
#include <fmt/format.h>
#include <vector>

#include "base/content_hash.h"
#include "base/json.h"
#include "kernels/base/check.h"

namespace trivet {
namespace {

constexpr int64_t kInfoVersion = 1;
constexpr int64_t kMaxBytes = 1 << 20;

}  // namespace

std::string to_json(const DatasetInfo& info) {
  const nlohmann::ordered_json json = {{"version", kInfoVersion},
                                       {"tokenizer", info.tokenizer},
                                       {"fingerprint", info.fingerprint},
                                       {"vocab_size", info.vocab_size},
                                       {"eod", info.eod},
                                       {"documents", info.documents},
                                       {"tokens", info.tokens},
                                       {"text_bytes", info.text_bytes},
                                       {"bin_xxh3_128", info.bin_hash}};
  return json.dump(2) + "\n";
}

std::optional<DatasetInfo> read_dataset_info(const std::string& prefix) {
  const std::string path = prefix + ".json";
  if (!file_exists(path)) return std::nullopt;
  const auto json = parse_json_or_discard(read_small_file(path, kMaxBytes));
  if (!json.is_object()) throw DataError(path + ": expected a JSON object");
  const auto value = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end()) throw DataError(fmt::format("{}: key \"{}\" is missing", path, key));
    return *found;
  };
  const auto text = [&](const char* key) {
    const auto found = value(key);
    if (!found.is_string()) throw DataError(fmt::format("{}: {} is no text", path, key));
    return found.template get<std::string>();
  };
  const auto number = [&](const char* key, int64_t least, int64_t most) {
    const auto found = value(key);
    // The larger half of uint64 would turn negative: get it as unsigned first.
    const bool fits = found.is_number_unsigned() && found.template get<uint64_t>() <= static_cast<uint64_t>(most);
    if (!fits || found.template get<int64_t>() < least)
      throw DataError(fmt::format("{}: {} is {}, expected {} to {}", path, key, found.dump(), least, most));
    return found.template get<int64_t>();
  };
  constexpr int64_t kMost = INT64_MAX;
  number("version", kInfoVersion, kInfoVersion);
  DatasetInfo info;
  info.tokenizer = text("tokenizer");
  if (info.tokenizer != "bytes" && info.tokenizer != "sentencepiece")
    throw DataError(
        fmt::format("{}: tokenizer is \"{}\", expected \"bytes\" or \"sentencepiece\"", path, info.tokenizer));
  info.fingerprint = text("fingerprint");
  info.vocab_size = number("vocab_size", 1, INT32_MAX);
  info.eod = number("eod", 0, info.vocab_size - 1);
  info.documents = number("documents", 0, kMost);
  info.tokens = number("tokens", 0, kMost);
  info.text_bytes = number("text_bytes", 0, kMost);
  info.bin_hash = text("bin_xxh3_128");
  return info;
}

void check_counts(const DatasetInfo& info, const IndexedDataset& dataset) {
  if (info.documents != dataset.documents() || info.tokens != dataset.tokens())
    throw DataError(
        fmt::format("{0}.json: counts {1} documents of {2} tokens, expected {3} of {4} as {0}.idx does: they "
                    "were not written together",
                    dataset.prefix(), info.documents, info.tokens, dataset.documents(), dataset.tokens()));
}

void check_bin_hash(const DatasetInfo& info, const IndexedDataset& dataset) {
  const InputFile bin(dataset.prefix() + ".bin");
  ContentHash hash;
  std::vector<std::byte> block(1 << 20);
  for (int64_t offset = 0; offset < bin.size();) {
    const auto part = std::span(block).first(static_cast<size_t>(std::min<int64_t>(bin.size() - offset, 1 << 20)));
    bin.read_at(offset, part);
    hash.add(part.data(), part.size());
    offset += static_cast<int64_t>(part.size());
  }
  if (hash.hex() != info.bin_hash)
    throw DataError(fmt::format("{}: its content has the hash {}, expected {} as {}.json says: it is damaged",
                                bin.path(), hash.hex(), info.bin_hash, dataset.prefix()));
}

}  // namespace trivet
