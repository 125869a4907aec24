#include "engine/data/bpe_tokenizer.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fmt/format.h>
#include <queue>
#include <set>
#include <utf8proc.h>

#include "base/check.h"
#include "base/files.h"
#include "base/piece.h"
#include "base/utf8.h"

namespace trivet {
namespace {

// Maps words to their tokens. Each thread has a cache, for one tokenizer at a time.
struct WordHash {
  using is_transparent = void;
  size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
};
struct WordCache {
  uint64_t owner = 0;
  std::unordered_map<std::string, std::pair<uint32_t, uint32_t>, WordHash, std::equal_to<>> words{};
  std::vector<int32_t> tokens{};  // of all words; each word stores a first index and a count
};
constexpr size_t kMostWordBytes = 32, kMostWords = piece(1 << 18, 8);

// Finds added tokens: the leftmost match, and of several that begin there the longest.
class AddedFinder {
 public:
  struct Found {
    size_t at = 0, size = 0;
    int32_t id = -1;  // -1: none, past the text
  };

  // A hidden token hides tokens within it, but is not found itself.
  void add(const std::string& text, int32_t id, bool hidden) {
    ids_[text] = hidden ? -1 : id;
    lengths_.insert(text.size());
    begins_[static_cast<uint8_t>(text[0])] = true;
  }

  Found find(std::string_view text) const {
    for (size_t at = 0; at < text.size() && !ids_.empty();) {
      const auto found = begins_[static_cast<uint8_t>(text[at])] ? longest(text.substr(at)) : ids_.end();
      if (found != ids_.end() && found->second >= 0) return {at, found->first.size(), found->second};
      at += found == ids_.end() ? 1 : found->first.size();
    }
    return {text.size()};
  }

  // True if a token spans `at`, or might span it once the text continues. ends: also true if a token ends at `at`.
  bool spans(std::string_view text, size_t at, bool ends) const {
    return std::ranges::any_of(ids_, [&](const auto& token) {
      const size_t most = token.first.size() - 1, begin = at - std::min(at, most + ends);
      return at + most > text.size() || text.substr(begin, at + most - begin).find(token.first) != text.npos;
    });
  }

  size_t longest() const { return lengths_.empty() ? 0 : *lengths_.begin(); }

 private:
  using Ids = std::unordered_map<std::string, int32_t, WordHash, std::equal_to<>>;

  Ids::const_iterator longest(std::string_view text) const {
    for (const size_t length : lengths_)
      if (const auto found = ids_.find(text.substr(0, length)); found != ids_.end() && length <= text.size())
        return found;
    return ids_.end();
  }

  Ids ids_;
  std::set<size_t, std::greater<>> lengths_;
  std::array<bool, 256> begins_{};  // by first byte
};

// Normalisation Form C of the text's valid UTF-8. By Unicode's stability policy all versions agree on the characters
// that they know. (The version in `tokenizers` 0.23.3 lacks 120 combining marks that are reordered here.) utf8proc
// itself takes quadratic time to reorder many marks.
std::string nfc(std::string_view text) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto marks = [](int32_t code) { return utf8proc_get_property(code)->combining_class; };
  std::string normal;
  std::vector<int32_t> codes;
  while (!text.empty()) {
    codes.clear();
    size_t valid = 0;
    for (Character next = character_at(text, 0); next.valid && next.size > 0; next = character_at(text, valid)) {
      int32_t parts[32];
      int boundary = 0;
      const auto count = utf8proc_decompose_char(static_cast<int32_t>(next.code), parts, 32, kOptions, &boundary);
      codes.insert(codes.end(), parts, parts + count);
      valid += next.size;
    }
    for (auto begin = codes.begin(); begin != codes.end();) {
      const auto end = std::find_if(begin, codes.end(), [&](int32_t code) { return marks(code) == 0; });
      std::stable_sort(begin, end, [&](int32_t a, int32_t b) { return marks(a) < marks(b); });
      begin = end == codes.end() ? end : end + 1;
    }
    codes.resize(static_cast<size_t>(utf8proc_normalize_utf32(codes.data(), std::ssize(codes), kOptions)));
    for (const int32_t code : codes) {
      uint8_t bytes[4];
      normal.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(utf8proc_encode_char(code, bytes)));
    }
    text.remove_prefix(valid);
    normal += text.substr(0, 1);
    text.remove_prefix(std::min<size_t>(1, text.size()));
  }
  return normal;
}

// True if no character before `at` depends on those after it, and all characters close enough to `at` for a token of
// `bytes` normalised bytes to span it are ASCII, which normalisation leaves unchanged.
bool is_normal(std::string_view text, size_t at, size_t bytes) {
  const std::string_view near = text.substr(at - std::min(at, bytes), std::min(at, bytes) + bytes + 1);
  return std::ranges::all_of(near, [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(BpeModel model, const BpeEnds& ends, bool special_as_text)
      : model_(std::move(model)),
        cutter_(model_.splits),
        fingerprint_(bpe_fingerprint(model_)),
        eod_(model_.special(ends.eod, ends.eod_source)),
        bos_(ends.bos.empty() ? -1 : model_.special(ends.bos, ends.bos_source)) {
    space_ = std::ranges::any_of(model_.splits, &BpeSplit::prefix_space);
    for (const BpeModel::Added& token : model_.added) {
      finders_[token.normalized].add(token.normalized && model_.nfc ? nfc(token.text) : token.text, token.id,
                                     special_as_text && token.special);
      added_[static_cast<size_t>(token.id)] = true;
    }
    for (size_t rank = 0; rank < model_.merges.size(); ++rank) {
      const auto& [left, right, result] = model_.merges[rank];
      merges_[key(left, right)] = {static_cast<uint32_t>(rank), result};
    }
    for (size_t byte = 0; byte < 256; ++byte) of_byte_[byte] = model_.vocab.at(bpe_letter(static_cast<uint8_t>(byte)));
  }

  std::string kind() const override { return "bpe"; }
  std::string fingerprint() const override { return fingerprint_; }
  int64_t vocab_size() const override { return std::ssize(model_.tokens); }
  int32_t eod() const override { return eod_; }
  int32_t bos() const override { return bos_; }

  int64_t count_added(std::span<const int32_t> tokens) const override {
    return std::ranges::count_if(tokens, [&](int32_t token) { return added_[static_cast<size_t>(token)]; });
  }

  size_t part_size(std::string_view text, size_t most) const override {
    return cutter_.part_size(text, most, [&](size_t at) {
      return (!model_.nfc || is_normal(text, at, finders_[1].longest())) && !finders_[0].spans(text, at, space_) &&
             !finders_[1].spans(text, at, space_);
    });
  }

  std::vector<int32_t> encode(std::string_view text, bool goes_on) const override {
    static thread_local WordCache cache;
    if (cache.owner != number_) cache = {number_};
    std::vector<int32_t> tokens;
    encode_between(text, goes_on, 0, cache, tokens);
    return tokens;
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens)
      if (const std::string& name = name_of(token); token != eod_ && token != bos_)
        text += added_[static_cast<size_t>(token)] ? name : bpe_bytes(name).value_or(name);
    return text;
  }

  std::string piece(int32_t token) const override { return name_of(token); }

 private:
  struct Merge {
    uint32_t rank;
    int32_t result;
  };
  struct Symbol {
    int32_t id, previous, next;  // neighbours, -1 at an end; id -1: merged into its predecessor
  };
  struct Candidate {
    uint32_t rank;
    int32_t at, result;
    bool operator>(const Candidate& other) const { return std::pair(rank, at) > std::pair(other.rank, other.at); }
  };

  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }

  const std::string& name_of(int32_t token) const {
    if (token < 0 || token >= vocab_size())
      throw DataError(
          fmt::format("token id {} is not in the BPE vocabulary, expected 0 to {}", token, vocab_size() - 1));
    return model_.tokens[static_cast<size_t>(token)];
  }

  // Encodes added tokens, first those matched before normalisation, and the text between them.
  void encode_between(std::string_view text, bool goes_on, size_t finder, WordCache& cache,
                      std::vector<int32_t>& tokens) const {
    if (finder == 2) {
      cutter_.cut(text, goes_on, [&](std::string_view piece) { encode_piece(piece, cache, tokens); });
      return;
    }
    std::string normal;
    if (finder == 1 && model_.nfc) text = normal = nfc(text);
    while (!text.empty()) {
      const AddedFinder::Found found = finders_[finder].find(text);
      encode_between(text.substr(0, found.at), goes_on, finder + 1, cache, tokens);
      if (found.id >= 0) tokens.push_back(found.id);
      text.remove_prefix(found.at + found.size);
      goes_on = false;
    }
  }

  void encode_piece(std::string_view piece, WordCache& cache, std::vector<int32_t>& tokens) const {
    if (piece.size() > kMostWordBytes) return merge(piece, tokens);
    if (const auto word = cache.words.find(piece); word != cache.words.end()) {
      const auto known = cache.tokens.begin() + word->second.first;
      tokens.insert(tokens.end(), known, known + word->second.second);
      return;
    }
    if (cache.words.size() == kMostWords) cache = {number_};
    const size_t before = tokens.size();
    merge(piece, tokens);
    cache.words.emplace(piece, std::pair(cache.tokens.size(), tokens.size() - before));
    cache.tokens.insert(cache.tokens.end(), tokens.begin() + static_cast<std::ptrdiff_t>(before), tokens.end());
  }

  // Merges the pair of lowest rank, the leftmost on ties, until no pair can be merged.
  void merge(std::string_view piece, std::vector<int32_t>& tokens) const {
    if (model_.ignore_merges) {
      std::string name;
      for (const char byte : piece) name += bpe_letter(static_cast<uint8_t>(byte));
      if (const auto known = model_.vocab.find(name); known != model_.vocab.end())
        return tokens.push_back(known->second);
    }
    if (piece.size() > INT32_MAX)
      throw DataError(fmt::format("{} bytes without a split point, expected at most {}", piece.size(), INT32_MAX));
    const auto size = static_cast<int32_t>(piece.size());
    std::vector<Symbol> symbols(piece.size());
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto symbol = [&](int32_t at) -> Symbol& { return symbols[static_cast<size_t>(at)]; };
    const auto merge_of = [&](int32_t at) {  // of this symbol and the next
      if (at < 0 || symbol(at).id < 0 || symbol(at).next < 0) return merges_.end();
      return merges_.find(key(symbol(at).id, symbol(symbol(at).next).id));
    };
    const auto consider = [&](int32_t at) {
      if (const auto found = merge_of(at); found != merges_.end())
        queue.push({found->second.rank, at, found->second.result});
    };
    for (int32_t i = 0; i < size; ++i)
      symbol(i) = {of_byte_[static_cast<uint8_t>(piece[static_cast<size_t>(i)])], i - 1, i + 1 < size ? i + 1 : -1};
    for (int32_t i = 0; i < size; ++i) consider(i);
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      if (const auto found = merge_of(best.at); found == merges_.end() || found->second.result != best.result) continue;
      Symbol& left = symbol(best.at);
      Symbol& right = symbol(left.next);
      left.id = best.result;
      left.next = right.next;
      right.id = -1;
      if (left.next >= 0) symbol(left.next).previous = best.at;
      consider(left.previous);
      consider(best.at);
    }
    for (int32_t at = 0; at >= 0; at = symbol(at).next) tokens.push_back(symbol(at).id);
  }

  inline static std::atomic<uint64_t> made_ = 0;

  const BpeModel model_;
  const BpeCutter cutter_;
  const std::string fingerprint_;
  const int32_t eod_, bos_;
  const uint64_t number_ = ++made_;
  std::array<AddedFinder, 2> finders_;                                 // by Added::normalized
  std::vector<bool> added_ = std::vector<bool>(model_.tokens.size());  // by id
  std::unordered_map<uint64_t, Merge> merges_;                         // by pair
  std::array<int32_t, 256> of_byte_{};
  bool space_ = false;  // prepend a space to a text that does not begin with one
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe(BpeModel model, const BpeEnds& ends, bool special_as_text) {
  return std::make_unique<BpeTokenizer>(std::move(model), ends, special_as_text);
}

std::unique_ptr<Tokenizer> load_bpe(const std::string& path) {
  constexpr std::string_view name = "tokenizer.json";
  if (!path.ends_with(name)) throw DataError(path + ": expected a file whose name ends in tokenizer.json");
  const std::string config = tokenizer_config_of(path);
  BpeModel model = parse_bpe_model(read_small_file(path, kMaxBpeBytes), path);
  if (!file_exists(config))
    throw DataError(path + ": names no end of document; expected tokenizer_config.json next to it, with \"eos_token\"");
  BpeEnds ends = read_tokenizer_config(config);
  if (!model.begin.empty()) ends.bos = model.begin;  // as in transformers, whatever the configuration says
  return make_bpe(std::move(model), ends, false);
}

}  // namespace trivet
