#include "engine/data/training_data.h"

#include <cerrno>
#include <fmt/ranges.h>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/text.h"
#include "engine/config/problems.h"
#include "engine/data/dataset_info.h"
#include "engine/data/tokenizer.h"
#include "kernels/base/check.h"

namespace trivet {
namespace {

bool is_missing(const std::string& path) { return !file_exists(path) && errno == ENOENT; }

Vocabulary vocabulary_of_model(const std::string& path) {
  if (is_missing(path)) throw ConfigError(path + ": there is no such file, expected a tokenizer");
  const auto tokenizer = load_tokenizer(path);
  return {tokenizer->vocab_size(), tokenizer->fingerprint(), path};
}

// The datasets that are given, with their keys.
std::vector<std::pair<const char*, std::string>> paths_of(const DataConfig& config) {
  std::vector<std::pair<const char*, std::string>> paths = {
      {"data.path", config.path}, {"data.train_path", config.train_path}, {"data.valid_path", config.valid_path}};
  std::erase_if(paths, [](const auto& path) { return path.second.empty(); });
  return paths;
}

}  // namespace

void expect_dataset(const std::string& prefix) {
  const std::string idx = prefix + ".idx", bin = prefix + ".bin";
  const bool no_idx = is_missing(idx), no_bin = is_missing(bin);
  if (no_idx && no_bin)
    throw ConfigError(fmt::format(
        "there is no dataset {}: neither {} nor {} exists; expected the prefix of both, as trivet data prepare makes "
        "them",
        prefix, idx, bin));
  if (no_idx || no_bin)
    throw DataError(fmt::format("{} is not there, expected beside {}", no_idx ? idx : bin, no_idx ? bin : idx));
}

std::optional<Vocabulary> data_vocabulary(const DataConfig& config) {
  std::vector<Vocabulary> found;
  if (!config.tokenizer_model.empty())
    found.push_back(opening("data.tokenizer_model", [&] { return vocabulary_of_model(config.tokenizer_model); }));
  for (const auto& [key, prefix] : paths_of(config))
    opening(key, [&] {
      const auto info = read_dataset_info(prefix);
      if (info) found.push_back({info->vocab_size, info->fingerprint, prefix + ".json"});
      else if (const std::string file = tokenizer_file(prefix); !file.empty())
        found.push_back(vocabulary_of_model(file));
    });
  if (found.empty()) return std::nullopt;
  for (const Vocabulary& other : found) {
    if (other.size != found[0].size || other.fingerprint != found[0].fingerprint)
      throw DataError(fmt::format("the data have two tokenizers: {} has {} ids ({}), {} has {} ids ({})",
                                  found[0].source, found[0].size, found[0].fingerprint, other.source, other.size,
                                  other.fingerprint));
  }
  return found[0];
}

TrainingData open_training_data(const Config& run) {
  const DataConfig& config = run.data;
  const bool with_validation = run.train.eval_interval > 0;
  TrainingData data;
  const auto open = [&](const char* key, const std::string& prefix) {
    return opening(key, [&] {
      expect_dataset(prefix);
      auto dataset = std::make_shared<const IndexedDataset>(prefix);
      const auto info = read_dataset_info(prefix);
      if (info) check_written_together(*info, *dataset);
      const auto sample = [&](const char* end) { return sampled_hash(InputFile(prefix + end)); };
      data.identities[key] =
          fmt::format("{} in {}, hash {}", counted(dataset->tokens(), "token"),
                      counted(dataset->sequences(), "document"), content_hash(sample(".idx") + sample(".bin")));
      return dataset;
    });
  };
  const auto part_of = [&](const std::shared_ptr<const IndexedDataset>& dataset, DocumentRange range, const char* name,
                           bool once = false) {
    return std::make_unique<GptDataset>(
        dataset, range,
        GptDataset::Options{name, run.model.seq_length, run.model.vocab_size.value(), config.seed, once});
  };

  if (!config.path.empty()) {
    const auto dataset = open("data.path", config.path);
    const auto [train, valid, test] = split_documents(config.split, dataset->sequences());
    if (with_validation && valid.size() == 0)
      throw ConfigError(
          fmt::format("data.split is \"{}\", which leaves none of the {} of {} for validation; make more documents of "
                      "the text (trivet data prepare --document paragraph), split it otherwise (data.split), or give "
                      "two datasets (data.train_path and data.valid_path)",
                      fmt::join(config.split, ","), counted(dataset->sequences(), "document"), config.path));
    data.train = part_of(dataset, train, "train");
    if (with_validation) data.valid = part_of(dataset, valid, "valid", run.train.full_validation);
    return data;
  }
  const auto train = open("data.train_path", config.train_path);
  data.train = part_of(train, {0, train->sequences()}, "train");
  if (with_validation) {
    const auto valid = open("data.valid_path", config.valid_path);
    data.valid = part_of(valid, {0, valid->sequences()}, "valid", run.train.full_validation);
  }
  return data;
}

}  // namespace trivet
