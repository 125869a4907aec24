#include "tools/prepare/bpe_trainer.h"

#include <algorithm>
#include <set>
#include <utility>

namespace trivet {
namespace {

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    return (uint64_t{static_cast<uint32_t>(pair.first)} << 32 | static_cast<uint32_t>(pair.second)) *
               0x9e3779b97f4a7c15u >>
           20;
  }
};

class BpeTrainer {
 public:
  BpeTrainer(BpePattern pattern, const std::vector<std::string>& special) {
    model_.splits = splits_of(pattern);
    for (const std::string& text : special) model_.added.push_back({id_of(text), text});
    std::set<std::string> alphabet;  // UTF-8 sorts in code point order
    for (size_t byte = 0; byte < 256; ++byte) alphabet.insert(bpe_letter(static_cast<uint8_t>(byte)));
    for (const std::string& letter : alphabet) id_of(letter);
  }

  BpeModel train(const PieceCounts& counts, int64_t vocab_size) {
    read_words(counts);
    while (std::ssize(model_.tokens) < vocab_size && !queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      Queued top = std::move(queue_.back());
      queue_.pop_back();
      if (const int64_t count = counts_[top.pair]; count != top.count) {
        top.count = count;
        push(std::move(top));
        continue;
      }
      if (top.count < 1) break;
      const auto [left, right] = top.pair;
      // It may exist already: as the same token from another merge, or as a special token.
      const int32_t result =
          id_of(model_.tokens[static_cast<size_t>(left)] + model_.tokens[static_cast<size_t>(right)]);
      model_.merges.push_back({left, right, result});
      for (const uint32_t word : top.words) merge(word, top.pair, result);
      queue_fresh();
    }
    keep_last_merges();
    return std::move(model_);
  }

 private:
  struct Word {
    std::vector<int32_t> tokens;
    int64_t count;
  };
  struct Queued {
    Pair pair;
    int64_t count;
    std::vector<uint32_t> words;  // words in which the pair appeared since it was last queued
    bool operator<(const Queued& other) const { return count != other.count ? count < other.count : pair > other.pair; }
  };

  int32_t id_of(const std::string& token) {
    const auto [known, fresh] = model_.vocab.try_emplace(token, static_cast<int32_t>(model_.tokens.size()));
    if (fresh) model_.tokens.push_back(token);
    return known->second;
  }

  void read_words(const PieceCounts& counts) {
    std::array<int32_t, 256> of_byte{};
    for (size_t byte = 0; byte < 256; ++byte) of_byte[byte] = model_.vocab.at(bpe_letter(static_cast<uint8_t>(byte)));
    for (const auto& [text, count] : counts) {
      Word word{{}, count};
      for (const char byte : text) word.tokens.push_back(of_byte[static_cast<uint8_t>(byte)]);
      words_.push_back(std::move(word));
      const std::vector<int32_t>& tokens = words_.back().tokens;
      for (size_t i = 1; i < tokens.size(); ++i) change({tokens[i - 1], tokens[i]}, words_.size() - 1, 1);
    }
    queue_fresh();
  }

  void change(const Pair& pair, size_t word, int64_t times) {
    counts_[pair] += times * words_[word].count;
    if (times < 0) return;
    std::vector<uint32_t>& words = fresh_[pair];
    if (words.empty() || words.back() != word) words.push_back(static_cast<uint32_t>(word));
  }

  void push(Queued queued) {
    queue_.push_back(std::move(queued));
    std::push_heap(queue_.begin(), queue_.end());
  }

  void queue_fresh() {
    for (auto& [pair, words] : fresh_)
      if (const int64_t count = counts_[pair]; count > 0) push({pair, count, std::move(words)});
    fresh_.clear();
  }

  // Leaves the pair's own count as it is, like `tokenizers`: if the pair appears again, the count determines its order.
  void merge(size_t word, const Pair& pair, int32_t result) {
    std::vector<int32_t>& tokens = words_[word].tokens;
    size_t out = 0;
    for (size_t i = 0; i < tokens.size(); ++i, ++out) {
      tokens[out] = tokens[i];
      if (i + 1 == tokens.size() || Pair(tokens[i], tokens[i + 1]) != pair) continue;
      tokens[out] = result;
      if (out > 0) {
        change({tokens[out - 1], pair.first}, word, -1);
        change({tokens[out - 1], result}, word, 1);
      }
      ++i;
      if (i + 1 < tokens.size()) {
        change({pair.second, tokens[i + 1]}, word, -1);
        change({result, tokens[i + 1]}, word, 1);
      }
    }
    tokens.resize(out);
  }

  void keep_last_merges() {
    std::set<Pair> seen;
    std::ranges::reverse(model_.merges);
    std::erase_if(model_.merges, [&](const auto& merge) { return !seen.emplace(merge[0], merge[1]).second; });
    std::ranges::reverse(model_.merges);
  }

  BpeModel model_;
  std::vector<Word> words_;
  std::unordered_map<Pair, int64_t, PairHash> counts_;
  std::unordered_map<Pair, std::vector<uint32_t>, PairHash> fresh_;  // new pairs, and the words that contain them
  std::vector<Queued> queue_;                                        // a heap
};

}  // namespace

void count_pieces(const BpeCutter& cutter, std::string_view text, PieceCounts& counts) {
  std::string key;
  cutter.cut(text, false, [&](std::string_view piece) { ++counts[key.assign(piece)]; });
}

BpeModel train_bpe(const PieceCounts& counts, int64_t vocab_size, BpePattern pattern,
                   const std::vector<std::string>& special) {
  return BpeTrainer(pattern, special).train(counts, vocab_size);
}

}  // namespace trivet
