#include "engine/train/datasets.h"

#include "engine/data/dataset_info.h"

namespace trivet {

const std::string& train_prefix(const Config& config) {
  return config.data.path.empty() ? config.data.train_path : config.data.path;
}

std::optional<int64_t> dataset_vocab_size(const Config& config) {
  if (train_prefix(config).empty()) return std::nullopt;
  const auto info = read_dataset_info(train_prefix(config));
  return info ? std::optional(info->vocab_size) : std::nullopt;
}

Datasets open_datasets(const Config& config) {
  const auto make = [&](const std::shared_ptr<const IndexedDataset>& source, DocumentRange documents,
                        std::string name) {
    return std::make_unique<GptDataset>(source, documents,
                                        GptDataset::Options{.name = std::move(name),
                                                            .seq_length = config.model.seq_length,
                                                            .vocab_size = config.model.vocab_size.value(),
                                                            .seed = config.data.seed});
  };
  const bool evaluates = config.train.eval_interval > 0;
  Datasets datasets;
  if (!config.data.path.empty()) {
    const auto source = std::make_shared<const IndexedDataset>(config.data.path);
    const auto ranges = split_documents(config.data.split, source->sequences());
    datasets.train = make(source, ranges[0], "train");
    if (evaluates) {
      datasets.valid = make(source, ranges[1], "valid");
      datasets.valid_source = source;
      datasets.valid_documents = ranges[1];
    }
    return datasets;
  }
  const auto train = std::make_shared<const IndexedDataset>(config.data.train_path);
  datasets.train = make(train, {0, train->sequences()}, "train");
  if (evaluates) {
    datasets.valid_source = std::make_shared<const IndexedDataset>(config.data.valid_path);
    datasets.valid_documents = {0, datasets.valid_source->sequences()};
    datasets.valid = make(datasets.valid_source, datasets.valid_documents, "valid");
  }
  return datasets;
}

}  // namespace trivet
