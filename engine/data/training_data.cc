#include "engine/data/training_data.h"

#include <array>
#include <cerrno>
#include <fmt/ranges.h>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/text.h"
#include "engine/config/blend_text.h"
#include "engine/config/problems.h"
#include "engine/data/blend.h"
#include "engine/data/bpe_model.h"
#include "engine/data/dataset_info.h"
#include "engine/data/gpt_dataset.h"
#include "engine/data/tokenizer.h"

namespace trivet {
namespace {

bool is_missing(const std::string& path) { return !file_exists(path) && errno == ENOENT; }

Vocabulary vocabulary_of_model(const std::string& path) {
  if (is_missing(path)) throw ConfigError(path + ": there is no such file, expected a tokenizer");
  const auto tokenizer = load_tokenizer(path);
  return {tokenizer->vocab_size(), tokenizer->fingerprint(), path, tokenizer->eod()};
}

// The configured datasets, with their keys.
std::vector<std::pair<const char*, std::string>> paths_of(const DataConfig& config) {
  std::vector<std::pair<const char*, std::string>> paths;
  for (const auto& [key, text] :
       {std::pair("data.path", &config.path), std::pair("data.train_path", &config.train_path),
        std::pair("data.valid_path", &config.valid_path), std::pair("data.test_path", &config.test_path)})
    for (const BlendSource& source : parse_blend(*text).sources) paths.emplace_back(key, source.prefix);
  return paths;
}

struct WeightedDataset {
  double weight;  // 0: weighted by its size
  std::shared_ptr<const IndexedDataset> dataset;
  int64_t bos;  // begins every document; -1: none does, or unknown
};

// reads: if false, the tokens are not read, and the data gets no identity.
std::vector<WeightedDataset> open_sources(const std::string& key, const std::string& text, bool reads,
                                          TrainingData& data) {
  std::vector<WeightedDataset> sources;
  for (const auto& [weight, prefix] : parse_blend(text).sources) {
    expect_dataset(prefix);
    auto dataset = std::make_shared<const IndexedDataset>(prefix);
    const auto info = read_dataset_info(prefix);
    if (info) check_written_together(*info, *dataset);
    const std::string counts = fmt::format("{} in {}", counted(dataset->tokens(), "token"),
                                           counted(dataset->sequences(), "document")),
                      tokens = reads ? dataset->tokens_hash() : "unread";
    if (reads)
      data.identities[key] += fmt::format("{}{}, hash {}", sources.empty() ? "" : "; ", counts,
                                          content_hash(sampled_hash(InputFile(prefix + ".idx")) + tokens));
    data.fingerprints.emplace_back(
        fmt::format("dataset {} {}", key, prefix),
        fmt::format("{}, hashes: lengths {}, tokens {}, {}.json {}", counts, dataset->lengths_hash(), tokens, prefix,
                    info ? content_hash(to_json(*info)) : "none"));
    sources.push_back({weight, std::move(dataset), info ? info->bos : -1});
  }
  return sources;
}

TextBlock describe(const std::vector<WeightedDataset>& sources, const std::vector<std::unique_ptr<GptDataset>>& parts,
                   const std::vector<double>& counts) {
  TextBlock block{.title = "training data"};
  const double samples = std::accumulate(counts.begin(), counts.end(), 0.0);
  for (size_t i = 0; i < parts.size(); ++i) {
    const double tokens = counts[i] * static_cast<double>(parts[i]->seq_length());
    block.rows.push_back(
        {sources[i].dataset->prefix(),
         fmt::format("{}, {:.4g} epochs, {} of the samples{}", counted(parts[i]->tokens_per_epoch(), "token"),
                     tokens / static_cast<double>(parts[i]->tokens_per_epoch()), percent_text(counts[i] / samples),
                     sources[i].bos < 0 ? "" : fmt::format(", token {} begins each document", sources[i].bos))});
  }
  return block;
}

class BlendedDataset : public Samples {
 public:
  BlendedDataset(std::vector<std::unique_ptr<GptDataset>> sources, Blend blend)
      : sources_(std::move(sources)), blend_(std::move(blend)) {}

  int64_t seq_length() const override { return sources_[0]->seq_length(); }
  int64_t samples() const override {
    int64_t sum = 0;
    for (const auto& source : sources_) sum += source->samples();
    return sum;
  }
  int64_t labels_of(int64_t samples) const override {
    std::vector<int64_t> taken(sources_.size());
    for (int64_t i = 0; i < samples; ++i) ++taken.at(place(i).source);
    int64_t sum = 0;
    for (size_t i = 0; i < taken.size(); ++i) sum += sources_[i]->labels_of(taken[i]);
    return sum;
  }

 private:
  void read_sample(int64_t index, std::span<int32_t> tokens, std::vector<int32_t>* ends) const override {
    const auto [source, sample] = place(index);
    if (source < sources_.size()) sources_[source]->sample(sample, tokens, ends);
    else std::ranges::fill(tokens, -1);
  }
  Blend::Place place(int64_t index) const {
    const std::lock_guard lock(mutex_);
    return blend_.at(index);
  }

  std::vector<std::unique_ptr<GptDataset>> sources_;
  mutable std::mutex mutex_;
  mutable Blend blend_;  // guarded by mutex_
};

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
    throw DataError(fmt::format("{} does not exist, expected it next to {}", no_idx ? idx : bin, no_idx ? bin : idx));
}

std::optional<Vocabulary> data_vocabulary(const DataConfig& config) {
  std::optional<Vocabulary> found;
  const auto add = [&](Vocabulary other) {
    if (!found) return void(found = std::move(other));
    if (other.size != found->size || other.fingerprint != found->fingerprint)
      throw DataError(fmt::format("the datasets have different tokenizers: {} has {} ids ({}), {} has {} ids ({}){}",
                                  found->source, found->size, found->fingerprint, other.source, other.size,
                                  other.fingerprint, bpe_difference(found->fingerprint, other.fingerprint)));
  };
  if (!config.tokenizer_model.empty())
    opening("data.tokenizer_model", [&] { add(vocabulary_of_model(config.tokenizer_model)); });
  for (const auto& [key, prefix] : paths_of(config))
    opening(key, [&] {
      const auto info = read_dataset_info(prefix);
      const std::string file = tokenizer_file(prefix);
      if (info) add({info->vocab_size, info->fingerprint, prefix + ".json", info->eod});
      else if (!file.empty()) add(vocabulary_of_model(file));
    });
  return found;
}

DocumentRules document_rules(const DataConfig& config, int64_t eod) {
  return {config.reset_position_ids, config.reset_attention_mask, config.eod_mask_loss, eod};
}

TrainingData open_training_data(const Config& run, double samples) {
  const DataConfig& config = run.data;
  TrainingData data;
  // An identity requires reading tokens, and a benchmark must not read any before its clock starts.
  const bool timed = directing_section(run);
  const auto open = [&](const char* key, const std::string& text) {
    return opening(key, [&] { return open_sources(key, text, !timed, data); });
  };
  const bool whole = !config.path.empty();
  constexpr std::array kNames{"train", "valid", "test"}, kSets{"training", "validation", "test"};
  // part: index in kNames, and in data.split if that applies.
  const auto part_of = [&](const std::vector<WeightedDataset>& sources, size_t part) {
    const bool training = part == 0;
    const bool in_order = !training && evaluates_in_order(run.train), once = training ? !config.repeat : in_order;
    std::vector<std::unique_ptr<GptDataset>> parts;
    std::vector<double> weights;
    std::vector<int64_t> sizes;
    for (const auto& [weight, dataset, bos] : sources) {
      const DocumentRange documents =
          whole ? split_documents(config.split, dataset->sequences())[part] : DocumentRange{0, dataset->sequences()};
      if (!training && whole && documents.size() == 0)
        throw ConfigError(fmt::format(
            "data.split is \"{}\", which leaves none of the {} of {} for {}; cut the text into more documents "
            "(trivet data prepare --document paragraph), change data.split, or give two datasets "
            "(data.train_path and data.valid_path)",
            fmt::join(config.split, ","), counted(dataset->sequences(), "document"), dataset->prefix(), kSets[part]));
      if (!training && whole)
        data.sources.rows.push_back(
            {dataset->prefix(),
             fmt::format("{} set: documents {} to {} of {}", kSets[part], grouped(documents.begin + 1),
                         grouped(documents.end), grouped(dataset->sequences()))});
      parts.push_back(std::make_unique<GptDataset>(dataset, documents,
                                                   GptDataset::Options{.name = kNames[part],
                                                                       .seq_length = run.model.seq_length,
                                                                       .vocab_size = run.model.vocab_size.value(),
                                                                       .seed = config.seed,
                                                                       .in_order = in_order,
                                                                       .once = once}));
      weights.push_back(weight > 0 ? weight : static_cast<double>(parts.back()->tokens_per_epoch()));
      sizes.push_back(once ? parts.back()->samples() : std::numeric_limits<int64_t>::max());
    }
    Blend blend(weights, sizes);
    if (training) data.sources = describe(sources, parts, blend.expected(samples));
    if (parts.size() == 1) return std::unique_ptr<Samples>(std::move(parts[0]));
    return std::unique_ptr<Samples>(std::make_unique<BlendedDataset>(std::move(parts), std::move(blend)));
  };

  std::vector<WeightedDataset> split;
  if (whole) split = open("data.path", config.path);
  const auto open_part = [&](const char* key, const std::string& path, size_t part) -> std::unique_ptr<Samples> {
    const bool given = whole ? config.split.size() > part && config.split[part] > 0 : !path.empty();
    if (!given || !(part == 0 ? !run.train.skip_train : evaluates(run))) return nullptr;
    auto samples = part_of(whole ? split : open(key, path), part);
    if (part > 0 && run.train.eval_samples > samples->samples())
      throw ConfigError(
          fmt::format("train.eval_samples: found {}, but the {} set has {}; expected at most that, or "
                      "train.full_validation",
                      run.train.eval_samples, kSets[part], counted(samples->samples(), "sample")));
    return samples;
  };
  data.train = open_part("data.train_path", config.train_path, 0);
  if (data.train && !config.repeat && samples > static_cast<double>(data.train->samples()))
    throw ConfigError(
        fmt::format("data.repeat: false gives {}, and the run takes {:.0f}; expected a shorter run "
                    "(train.train_iters), or data.repeat=true",
                    counted(data.train->samples(), "sample"), samples));
  data.valid = open_part("data.valid_path", config.valid_path, 1);
  data.test = open_part("data.test_path", config.test_path, 2);
  data.tokenizer = data_vocabulary(config).value_or(Vocabulary{});
  data.documents = document_rules(config, data.tokenizer.eod);
  if (data.documents.any())
    data.sources.rows.push_back(
        {"a document ends",
         data.documents.eod < 0
             ? "where a sequence of the .idx does; no tokenizer says which token does"
             : fmt::format("after token {}, and where a sequence of the .idx does", data.documents.eod)});
  return data;
}

}  // namespace trivet
