#include "engine/data/gpt_dataset.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "base/check.h"
#include "base/host_memory.h"
#include "base/text.h"
#include "engine/data/shuffle.h"

namespace trivet {
namespace {

// Two for a window that straddles two epochs, and one for another reader in the previous epoch.
constexpr size_t kEpochsInUse = 3;
constexpr int64_t kMaxEntries = std::numeric_limits<uint32_t>::max();

}  // namespace

std::array<DocumentRange, 3> split_documents(std::span<const double> shares, int64_t documents) {
  std::array<double, 3> weights{};
  check(shares.size() <= weights.size(), "documents are split into training, validation and test data");
  std::copy(shares.begin(), shares.end(), weights.begin());
  const double sum = weights[0] + weights[1] + weights[2];
  std::array<DocumentRange, 3> ranges;
  double end = 0;
  int64_t begin = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    end += weights[i] / sum;
    // nearbyint rounds half to even, as Megatron's Python does. The last sum may differ from 1 in its last bit.
    const auto last =
        std::clamp(static_cast<int64_t>(std::nearbyint(end * static_cast<double>(documents))), begin, documents);
    ranges[i] = {begin, last};
    begin = last;
  }
  return ranges;
}

GptDataset::GptDataset(std::shared_ptr<const IndexedDataset> dataset, DocumentRange documents, Options options)
    : dataset_(std::move(dataset)), documents_(documents), options_(std::move(options)) {
  check(options_.seq_length > 0 && options_.vocab_size > 0 && 0 <= documents.begin &&
            documents.begin <= documents.end && documents.end <= dataset_->sequences(),
        fmt::format("{} data of {}: documents [{}, {}) of {}, sequence length {}, vocabulary {}", options_.name,
                    dataset_->prefix(), documents.begin, documents.end, dataset_->sequences(), options_.seq_length,
                    options_.vocab_size));
  const MemoryPurpose purpose("the order of samples of", dataset_->prefix());
  tokens_per_epoch_ = dataset_->begin(documents.end) - dataset_->begin(documents.begin);
  if (tokens_per_epoch_ < options_.seq_length + 1)
    throw DataError(fmt::format(
        "{}: the {} data is {} in {} ({} in the dataset), expected at least {}: one sample of sequence "
        "length {} and its last label; more text, a larger share of data.split or a smaller "
        "model.seq_length would do",
        dataset_->prefix(), options_.name, counted(tokens_per_epoch_, "token"), counted(documents.size(), "document"),
        dataset_->sequences(), options_.seq_length + 1, options_.seq_length));
  if (tokens_per_epoch_ / options_.seq_length >= kMaxEntries)
    throw DataError(fmt::format("{}: the {} data is {} tokens, expected fewer than {} samples of length {} an epoch",
                                dataset_->prefix(), options_.name, tokens_per_epoch_, kMaxEntries,
                                options_.seq_length));
}

// In the stream, windows start at multiples of s, epochs at multiples of tokens_per_epoch_.
int64_t GptDataset::first_sample(int64_t epoch) const {
  return (epoch * tokens_per_epoch_ + options_.seq_length - 1) / options_.seq_length;
}

std::shared_ptr<const GptDataset::Epoch> GptDataset::build_epoch(int64_t number) const {
  auto epoch = std::make_shared<Epoch>();
  const auto seed = static_cast<uint64_t>(options_.seed);
  const auto stream = 2 * static_cast<uint64_t>(number);
  const int64_t samples = options_.once ? this->samples() : first_sample(number + 1) - first_sample(number);
  epoch->number = number;
  const auto order = [&](int64_t n, uint64_t of) {
    return options_.in_order ? in_order(static_cast<uint32_t>(n)) : permutation(static_cast<uint32_t>(n), seed, of);
  };
  epoch->document_index = order(documents_.size(), stream);
  epoch->shuffle_index = order(samples, stream + 1);
  epoch->sample_index.resize(static_cast<size_t>(samples));

  int64_t start =
      first_sample(number) * options_.seq_length - number * tokens_per_epoch_;  // of the window, in the epoch
  int64_t begin = 0;                                                            // of the document
  uint32_t position = 0;
  for (Start& entry : epoch->sample_index) {
    int64_t length = dataset_->length(documents_.begin + epoch->document_index[position]);
    while (start >= begin + length) {
      begin += length;
      length = dataset_->length(documents_.begin + epoch->document_index[++position]);
    }
    entry = {position, static_cast<uint32_t>(start - begin)};
    start += options_.seq_length;
  }
  return epoch;
}

std::shared_ptr<const GptDataset::Epoch> GptDataset::epoch(int64_t number) const {
  // Built under the lock, so that other readers wait for it instead of building it too.
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(epochs_.begin(), epochs_.end(), [&](const auto& e) { return e->number == number; });
  if (found == epochs_.end()) {
    if (epochs_.size() == kEpochsInUse) epochs_.pop_back();
    epochs_.push_front(build_epoch(number));
  } else {
    std::rotate(epochs_.begin(), found, found + 1);
  }
  return epochs_.front();
}

void GptDataset::read_sample(int64_t index, std::span<int32_t> tokens, std::vector<int32_t>* ends) const {
  const int64_t s = options_.seq_length;
  if (tokens.size() != static_cast<size_t>(s) + 1) [[unlikely]]
    fail(fmt::format("a sample of {} data has {} tokens, got room for {}", options_.name, s + 1, tokens.size()));
  // A quarter of the range: the products and sums of token positions around it must not overflow.
  if (index < 0 || index >= std::numeric_limits<int64_t>::max() / 4 / s) [[unlikely]]
    fail(fmt::format("sample index {} of {} data is out of range", index, options_.name));

  if (options_.once && index >= samples()) return void(std::ranges::fill(tokens, -1));
  std::shared_ptr<const Epoch> epoch = this->epoch(index * s / tokens_per_epoch_);
  const Start start =
      epoch->sample_index[epoch->shuffle_index[static_cast<size_t>(index - first_sample(epoch->number))]];
  size_t position = start.position;
  int64_t offset = start.offset;
  for (std::span<int32_t> rest = tokens; !rest.empty(); offset = 0, ++position) {
    if (position == epoch->document_index.size()) {
      if (options_.once) return void(std::ranges::fill(rest, -1));
      epoch = this->epoch(epoch->number + 1);
      position = 0;
    }
    const int64_t document = documents_.begin + epoch->document_index[position];
    const auto count =
        static_cast<size_t>(std::min<int64_t>(dataset_->length(document) - offset, static_cast<int64_t>(rest.size())));
    const auto part = rest.first(count);
    dataset_->read(dataset_->begin(document) + offset, part);
    for (const int32_t& token : part) {
      if (token < 0 || token >= options_.vocab_size) [[unlikely]]
        throw DataError(
            fmt::format("{}.bin: token id {} at token {} of document {}, read for sample {} of the {} data, "
                        "expected 0 to {}: the vocabulary has {} entries",
                        dataset_->prefix(), token, offset + (&token - part.data()), document, index, options_.name,
                        options_.vocab_size - 1, options_.vocab_size));
    }
    rest = rest.subspan(count);
    if (ends && offset + static_cast<int64_t>(count) == dataset_->length(document))
      ends->push_back(static_cast<int32_t>(tokens.size() - rest.size()));
  }
}

}  // namespace trivet
