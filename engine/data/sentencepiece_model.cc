#include "engine/data/sentencepiece_model.h"

#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <optional>
#include <vector>

#include "base/check.h"

namespace trivet {
namespace {

// Field numbers in sentencepiece_model.proto: of a model, a piece, the trainer's and the normalizer's settings.
constexpr uint32_t kPiece = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5;
constexpr uint32_t kPieceText = 1, kPieceScore = 2, kPieceType = 3;
constexpr uint32_t kModelType = 3, kWhitespaceAsSuffix = 24, kByteFallback = 35;
constexpr uint32_t kCharsMap = 2, kAddDummyPrefix = 3, kRemoveExtraWhitespaces = 4, kEscapeWhitespaces = 5;
constexpr uint64_t kUserDefined = 4, kBpe = 2;
constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581 stands for a space in pieces

// ---- protobuf's wire format

struct WireField {
  uint32_t number;
  uint32_t wire_type;      // 0 varint, 1 eight bytes, 2 length-delimited, 5 four bytes
  uint64_t varint;         // wire type 0
  std::string_view bytes;  // the other types
};

class Message {
 public:
  Message(std::string_view bytes, const std::string& name) : rest_(bytes), name_(name) {}

  std::optional<WireField> next() {
    if (rest_.empty()) return std::nullopt;
    const uint64_t tag = varint();
    WireField field{static_cast<uint32_t>(tag >> 3), static_cast<uint32_t>(tag & 7), 0, {}};
    if (tag > UINT32_MAX || field.number == 0) reject("a field has no number");
    switch (field.wire_type) {
      case 0: field.varint = varint(); break;
      case 1: field.bytes = take(8); break;
      case 2: field.bytes = take(varint()); break;
      case 5: field.bytes = take(4); break;
      default: reject("a field has an unknown wire type");
    }
    return field;
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      if (shift < 64) value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    reject("a number has more than ten bytes");
  }

  std::string_view take(uint64_t size) {
    if (size > rest_.size()) reject(fmt::format("a field of {} bytes has only {} left", size, rest_.size()));
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  [[noreturn]] void reject(std::string_view why) const {
    throw DataError(fmt::format("{}: not a SentencePiece model, or damaged: {}", name_, why));
  }

  std::string_view rest_;
  const std::string& name_;
};

// ---- the table of characters

// The blob is a u32 size, a double-array trie of that size (Yata et al., "A compact static double-array keeping
// character codes", 2007; units as in Darts-clone), and the NUL-terminated replacements that its leaves point to. The
// library follows the trie unchecked, so every reachable unit must exist.
void check_chars_map(std::string_view blob, const std::string& name) {
  const auto reject = [&](std::string_view why) {
    throw DataError(fmt::format("{}: its table of characters is damaged: {}", name, why));
  };
  if (blob.empty()) return;
  uint32_t trie_bytes = 0;
  if (blob.size() <= sizeof(trie_bytes)) reject("it is truncated");
  std::memcpy(&trie_bytes, blob.data(), sizeof(trie_bytes));
  blob.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= blob.size())
    reject(fmt::format("a trie of {} bytes in {}", trie_bytes, blob.size()));
  const std::string_view replacements = blob.substr(trie_bytes);
  if (replacements.back() != '\0') reject("the last replacement does not end");

  std::vector<uint32_t> units(trie_bytes / 4);
  std::memcpy(units.data(), blob.data(), trie_bytes);
  const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  const auto label = [](uint32_t unit) { return unit & (1u << 31 | 0xffu); };
  std::vector<bool> seen(units.size());
  std::vector<uint32_t> nodes = {offset(units[0])};
  while (!nodes.empty()) {
    const uint32_t node = nodes.back();
    nodes.pop_back();
    if ((node | 0xff) >= units.size()) reject(fmt::format("a branch at unit {} of {}", node, units.size()));
    if (seen[node]) continue;
    seen[node] = true;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t unit = units[node ^ byte];
      if (label(unit) != byte) continue;
      const uint32_t child = node ^ byte ^ offset(unit);
      nodes.push_back(child);
      if (!(unit >> 8 & 1)) continue;
      if (child >= units.size()) reject(fmt::format("a leaf at unit {} of {}", child, units.size()));
      const uint32_t value = units[child] & 0x7fffffff;
      if (value >= replacements.size()) reject(fmt::format("a replacement at {} of {}", value, replacements.size()));
    }
  }
}

// Marks adjacent bytes in this piece. The library treats a space and U+2581 in a text alike.
void mark_neighbours(std::string_view piece, std::bitset<65536>& joined) {
  std::string_view before;  // the bytes that the previous symbol can end with
  while (!piece.empty()) {
    const bool space = piece.starts_with(kSpace);
    const std::string_view symbol = piece.substr(0, space ? kSpace.size() : 1);
    const std::string_view first = space ? "\xe2 " : symbol;
    for (const char a : before)
      for (const char b : first) joined.set(size_t{256} * static_cast<uint8_t>(a) + static_cast<uint8_t>(b));
    for (size_t i = 1; i < symbol.size(); ++i)
      joined.set(size_t{256} * static_cast<uint8_t>(symbol[i - 1]) + static_cast<uint8_t>(symbol[i]));
    before = space ? "\x81 " : symbol;
    piece.remove_prefix(symbol.size());
  }
}

}  // namespace

SentencePieceFacts check_sentencepiece_model(std::string_view bytes, const std::string& name) {
  SentencePieceFacts facts;
  bool user_defined = false, bpe = false, byte_fallback = false, whitespace_as_suffix = false;
  bool changes_characters = false, removes_spaces = true, escapes_spaces = true;
  Message model(bytes, name);
  while (const auto field = model.next()) {
    if (field->wire_type != 2) continue;
    Message message(field->bytes, name);
    const bool denormalizer = field->number == kDenormalizer;
    if (field->number == kPiece) {
      ++facts.pieces;
      while (const auto part = message.next()) {
        if (part->number == kPieceText && part->wire_type == 2) {
          // The library treats pieces as C strings when it builds its own tries.
          if (part->bytes.empty() || part->bytes.find('\0') != std::string_view::npos)
            throw DataError(fmt::format("{}: piece {} is empty or has a NUL", name, facts.pieces - 1));
          mark_neighbours(part->bytes, facts.joined);
        } else if (part->number == kPieceScore && part->wire_type == 5) {
          float score;
          std::memcpy(&score, part->bytes.data(), sizeof(score));
          if (!std::isfinite(score))
            throw DataError(fmt::format("{}: the score of piece {} is {}", name, facts.pieces - 1, score));
        } else if (part->number == kPieceType && part->wire_type == 0) {
          user_defined = user_defined || part->varint == kUserDefined;
        }
      }
    } else if (field->number == kTrainer) {
      while (const auto part = message.next()) {
        if (part->wire_type != 0) continue;
        if (part->number == kModelType) bpe = part->varint == kBpe;
        if (part->number == kByteFallback) byte_fallback = part->varint != 0;
        if (part->number == kWhitespaceAsSuffix) whitespace_as_suffix = part->varint != 0;
      }
    } else if (field->number == kNormalizer || denormalizer) {
      while (const auto part = message.next()) {
        if (part->number == kCharsMap && part->wire_type == 2) {
          check_chars_map(part->bytes, name);
          changes_characters = changes_characters || (!denormalizer && !part->bytes.empty());
        }
        if (part->wire_type != 0 || denormalizer) continue;
        if (part->number == kAddDummyPrefix) facts.adds_space = part->varint != 0;
        if (part->number == kRemoveExtraWhitespaces) removes_spaces = part->varint != 0;
        if (part->number == kEscapeWhitespaces) escapes_spaces = part->varint != 0;
      }
    }
  }
  if (facts.pieces == 0) throw DataError(fmt::format("{}: not a SentencePiece model: it has no pieces", name));
  facts.concatenates = bpe && byte_fallback && !user_defined && !whitespace_as_suffix && !changes_characters &&
                       !removes_spaces && escapes_spaces && !facts.adds_space;
  return facts;
}

}  // namespace trivet
