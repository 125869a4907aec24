#include "engine/data/piece_regex.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <utility>

#include "base/json.h"
#include "base/utf8.h"
#include "engine/data/unicode_table.h"
#include "kernels/base/check.h"

namespace trivet {
namespace {

constexpr uint32_t kEnd = Character::kEnd;
constexpr size_t kMaxSets = 64, kMaxDepth = 50, kMaxProgram = 1000, kMaxSteps = 1 << 16;
constexpr int kMaxRepeats = 1000;

// From the first of each pair to before the second, in any order.
using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

Ranges complement(Ranges ranges, uint32_t limit = kEnd) {
  std::ranges::sort(ranges);
  Ranges gaps;
  uint32_t end = 0;
  for (const auto& [begin, behind] : ranges) {
    if (begin > end) gaps.emplace_back(end, begin);
    end = std::max(end, behind);
  }
  if (end < limit) gaps.emplace_back(end, limit);
  return gaps;
}

Ranges joined(Ranges ranges, const Ranges& others) {
  ranges.insert(ranges.end(), others.begin(), others.end());
  return ranges;
}

// Of a general category, such as Lu, or of all that begin with a letter, such as L. Empty where there is none.
Ranges of_category(std::string_view name) {
  Ranges found;
  if (name.empty() || name.size() > 2) return found;
  uint32_t at = 0;
  for (const uint32_t run : kCategoryRuns) {
    const uint32_t size = run >> 5, category = run & 31;
    for (uint32_t i = 0; i < (category < 30 ? 1 : size); ++i) {
      const uint32_t own = category < 30 ? category : (category + i) & 1, length = category < 30 ? size : 1;
      if (kCategoryNames.substr(2 * own, 2).starts_with(name)) found.emplace_back(at, at + length);
      at += length;
    }
  }
  return found;
}

struct Node {
  // one: a character of the set. ahead: one of the set comes next, which is not taken.
  enum class Type { one, ahead, sequence, choice, repeat };
  Type type;
  size_t set = 0;           // of a possessive repeat: of what must not come next
  int least = 1, most = 1;  // -1: any number
  bool possessive = false;
  std::vector<Node> parts{};
};

class PatternParser {
 public:
  explicit PatternParser(std::string_view pattern) : pattern_(pattern) {
    for (size_t at = 0; at < pattern.size();) {
      const Character next = character_at(pattern, at);
      codes_.push_back(next.code);
      at += next.size;
    }
  }

  Node parse() {
    Node whole = choice();
    if (at_ < codes_.size()) refuse("a ) without its (");
    return whole;
  }
  const std::vector<Ranges>& sets() const { return sets_; }

  [[noreturn]] void refuse(std::string_view what) const {
    throw DataError(fmt::format("{} in the pattern {} before character {}", what, json_text(pattern_),
                                std::min(at_, codes_.size()) + 1));
  }

 private:
  bool sees(std::string_view next) const {
    return at_ + next.size() <= codes_.size() &&
           std::equal(next.begin(), next.end(), codes_.begin() + static_cast<std::ptrdiff_t>(at_),
                      [](char a, uint32_t b) { return static_cast<uint8_t>(a) == b; });
  }
  bool take(std::string_view next) {
    const bool found = sees(next);
    if (found) at_ += next.size();
    return found;
  }
  void expect(std::string_view next) {
    if (!take(next)) refuse(fmt::format("no {}", next));
  }
  uint32_t next() {
    if (at_ == codes_.size()) refuse("an end");
    return codes_[at_++];
  }

  Node choice() {
    if (++depth_ > kMaxDepth) refuse("a group too deep");
    Node made{Node::Type::choice};
    do made.parts.push_back(sequence());
    while (take("|"));
    --depth_;
    return made.parts.size() == 1 ? std::move(made.parts[0]) : made;
  }

  Node sequence() {
    Node made{Node::Type::sequence};
    while (at_ < codes_.size() && !sees("|") && !sees(")")) made.parts.push_back(repeated(atom()));
    return made.parts.size() == 1 ? std::move(made.parts[0]) : made;
  }

  Node repeated(Node of) {
    for (;;) {
      Node made{Node::Type::repeat};
      made.least = sees("+") ? 1 : 0;
      made.most = sees("?") ? 1 : -1;
      const bool counted = take("{");
      if (counted) count(made);
      else if (!take("?") && !take("*") && !take("+")) return of;
      if (of.type == Node::Type::ahead || sees("?")) refuse("a repeated look-ahead or a lazy quantifier");
      made.possessive = !counted && take("+");  // in Oniguruma {n,m}+ is ({n,m})+
      if (made.possessive && of.type != Node::Type::one) refuse("a possessive quantifier of a group");
      if (made.possessive) made.set = set(joined(complement(sets_[of.set]), {{kEnd, kEnd + 1}}));
      made.parts.push_back(std::move(of));
      of = std::move(made);
    }
  }

  void count(Node& repeat) {
    const auto number = [&] {
      int value = -1;
      while (at_ < codes_.size() && '0' <= codes_[at_] && codes_[at_] <= '9')
        if ((value = 10 * std::max(value, 0) + static_cast<int>(next() - '0')) > kMaxRepeats) refuse("a large number");
      return value;
    };
    const int first = number();
    repeat.least = std::max(first, 0);
    repeat.most = take(",") ? number() : first;
    expect("}");
    if ((first < 0 && repeat.most < 0) || (repeat.most >= 0 && repeat.most < std::max(first, 1)))
      refuse("a quantifier without a use");
  }

  Node atom() {
    const uint32_t c = next();
    if (c == '(') return group();
    if (c == '[') return one(characters());
    if (c == '\\') return one(folded(escape()));
    if (c == '.') return one(complement({{'\n', '\n' + 1}}));
    if (c == '$') return {Node::Type::ahead, set({{'\n', '\n' + 1}, {kEnd, kEnd + 1}})};
    if (std::string_view("^*+?{").find(static_cast<char>(c < 0x80 ? c : 0)) != std::string_view::npos) {
      --at_;
      refuse("an anchor or quantifier that is not implemented");
    }
    // Two letters that Oniguruma also finds as one, such as ß.
    const auto is_letter = [&](uint32_t letter, std::string_view of) {
      return letter < 0x80 && of.find(static_cast<char>(letter | 0x20)) != of.npos;
    };
    if (fold_ && at_ > 1 && is_letter(codes_[at_ - 2], "sf") && is_letter(c, "sfilt")) refuse("a ligature");
    return one(folded({{c, c + 1}}));
  }

  Node group() {
    const bool fold = fold_, is = take("?="), is_not = take("?!");
    if (take("?i:")) fold_ = true;
    else if (!is && !is_not && !take("?:") && sees("?")) refuse("a kind of group that is not implemented");
    Node made = choice();
    fold_ = fold;
    expect(")");
    if (!is && !is_not) return made;
    if (made.type != Node::Type::one) refuse("a look-ahead of more than one character");
    const Ranges& of = sets_[made.set];
    return {Node::Type::ahead, set(is ? of : joined(complement(of), {{kEnd, kEnd + 1}}))};
  }

  // Of a class behind its [.
  Ranges characters() {
    if (++depth_ > kMaxDepth) refuse("a class too deep");
    const bool negated = take("^");
    Ranges all;
    if (sees("]")) refuse("an empty class");
    while (!take("]")) {
      if (sees("&&") || sees("[:")) refuse("an intersection or POSIX class");
      Ranges item;
      if (take("[")) item = characters();
      else item = single();
      if (sees("-") && !sees("-]")) {
        ++at_;
        const Ranges last = single();
        if (size_of(item) != 1 || size_of(last) != 1 || last[0].first < item[0].first) refuse("no range");
        item = {{item[0].first, last[0].second}};
      }
      all = joined(std::move(all), folded(item));
    }
    --depth_;
    return negated ? complement(all) : all;
  }

  Ranges single() {
    if (sees("[") || sees("]")) refuse("no character");
    const uint32_t c = next();
    return c == '\\' ? escape() : Ranges{{c, c + 1}};
  }
  static size_t size_of(const Ranges& ranges) { return ranges.size() == 1 ? ranges[0].second - ranges[0].first : 0; }

  Ranges escape() {
    const uint32_t c = next();
    switch (c) {
      case 't':
      case 'n':
      case 'v':
      case 'f':
      case 'r': {
        const auto code = static_cast<uint32_t>("\t\n\v\f\r"[std::string_view("tnvfr").find(static_cast<char>(c))]);
        return {{code, code + 1}};
      }
      case 's': return joined(of_category("Z"), {{'\t', '\r' + 1}, {0x85, 0x86}});
      case 'd': return of_category("Nd");
      case 'p': {
        expect("{");
        std::string name;
        while (!take("}")) name += static_cast<char>(std::min(next(), uint32_t{0x7f}));
        Ranges found = of_category(name);
        if (found.empty()) refuse("a property that is no general category");
        return found;
      }
      case 'S':
      case 'D':
      case 'P': codes_[--at_] |= 0x20; return complement(escape());
      default: break;
    }
    const bool plain = c > ' ' && c < 0x7f && !('0' <= c && c <= '9') && !('a' <= (c | 0x20) && (c | 0x20) <= 'z');
    if (!plain) refuse("an escape that is not implemented");
    return {{c, c + 1}};
  }

  // Within (?i:…) with the other cases.
  Ranges folded(Ranges ranges) {
    if (!fold_) return ranges;
    const auto has = [&](uint32_t code) {
      return std::ranges::any_of(ranges, [&](const auto& range) { return range.first <= code && code < range.second; });
    };
    Ranges cases;
    for (const auto& range : ranges)
      if (range.second > 0x80) refuse("characters beyond ASCII in (?i:…)");
    for (uint32_t c = 'a'; c <= 'z'; ++c) {
      if (!has(c) && !has(c - 0x20)) continue;
      for (const uint32_t other : {c, c - 0x20, uint32_t{c == 's' ? 0x17fu : c == 'k' ? 0x212au : c}})
        cases.emplace_back(other, other + 1);
    }
    return joined(std::move(ranges), cases);
  }

  size_t set(Ranges ranges) {
    const auto at = std::ranges::find(sets_, ranges) - sets_.begin();
    if (at == std::ssize(sets_)) sets_.push_back(std::move(ranges));
    if (sets_.size() > kMaxSets) refuse("too many classes");
    return static_cast<size_t>(at);
  }
  Node one(Ranges ranges) { return {Node::Type::one, set(std::move(ranges))}; }

  const std::string_view pattern_;
  std::vector<uint32_t> codes_;
  std::vector<Ranges> sets_;
  size_t at_ = 0, depth_ = 0;
  bool fold_ = false;
};

// A program of Thompson's ("Regular expression search algorithm", 1968) whose forks prefer the way that backtracking
// tries first.
class Program {
 public:
  Program(const PatternParser& parser, const Node& pattern) : parser_(parser) {
    emit(pattern);
    add(Type::match);
  }

  // Where the program is between two characters, the preferred way first, each behind a character that it took.
  using Threads = std::vector<uint16_t>;

  // Lets these run up to the next character, which is in the sets of this mask, and takes it: to `taken`. Returns
  // whether one matches; those that come after it are dropped.
  bool run(const Threads& threads, uint64_t sets, Threads& taken) {
    seen_.assign(code_.size(), false);
    taken.clear();
    return !std::ranges::all_of(threads, [&](uint16_t thread) { return follow(thread, sets, taken); });
  }

 private:
  enum class Type : uint8_t { one, ahead, fork, match };
  struct Instruction {
    Type type;
    size_t set;
    uint16_t first, second;  // of a fork
  };

  uint16_t here() const { return static_cast<uint16_t>(code_.size()); }

  uint16_t add(Type type, size_t set = 0, uint16_t first = 0) {
    if (code_.size() == kMaxProgram) parser_.refuse("too many repeats");
    code_.push_back({type, set, first, first});
    return static_cast<uint16_t>(code_.size() - 1);
  }

  void emit(const Node& node) {
    std::vector<uint16_t> ends;
    switch (node.type) {
      case Node::Type::one: add(Type::one, node.set); break;
      case Node::Type::ahead: add(Type::ahead, node.set); break;
      case Node::Type::sequence:
        for (const Node& part : node.parts) emit(part);
        break;
      case Node::Type::choice:
        for (size_t i = 0; i + 1 < node.parts.size(); ++i) {
          const uint16_t fork = add(Type::fork, 0, static_cast<uint16_t>(code_.size() + 1));
          emit(node.parts[i]);
          ends.push_back(add(Type::fork));
          code_[fork].second = here();
        }
        emit(node.parts.back());
        break;
      case Node::Type::repeat: emit_repeat(node); break;
    }
    for (const uint16_t end : ends) code_[end].first = code_[end].second = here();
  }

  void emit_repeat(const Node& node) {
    for (int i = 0; i < node.least; ++i) emit(node.parts[0]);
    for (int i = node.least; i < std::max(node.most, node.least + (node.most < 0)); ++i) {
      const uint16_t fork = add(Type::fork, 0, static_cast<uint16_t>(code_.size() + 1));
      emit(node.parts[0]);
      const uint16_t end = add(Type::fork, 0, fork);
      code_[fork].second = here();
      if (node.possessive) add(Type::ahead, node.set);
      if (node.most >= 0) code_[end].first = code_[end].second = here();
    }
  }

  // False: a match, behind which nothing counts.
  bool follow(uint16_t at, uint64_t sets, Threads& taken) {
    if (seen_[at]) return true;
    seen_[at] = true;
    const Instruction& code = code_[at];
    const auto next = static_cast<uint16_t>(at + 1);
    switch (code.type) {
      case Type::match: return false;
      case Type::fork: return follow(code.first, sets, taken) && follow(code.second, sets, taken);
      case Type::ahead: return !(sets >> code.set & 1) || follow(next, sets, taken);
      case Type::one: break;
    }
    if (sets >> code.set & 1) taken.push_back(next);
    return true;
  }

  const PatternParser& parser_;
  std::vector<Instruction> code_;
  std::vector<bool> seen_;
};

}  // namespace

Character character_at(std::string_view text, size_t at) {
  if (at >= text.size()) return {kEnd, 0};
  const size_t size = utf8_character(text.substr(at));
  if (size == 0) return {0xfffd, 1};
  const auto first = static_cast<uint8_t>(text[at]);
  uint32_t code = size == 1 ? first : first & (0x7fu >> size);
  for (size_t i = 1; i < size; ++i) code = code << 6 | (static_cast<uint8_t>(text[at + i]) & 0x3fu);
  return {code, size};
}

PieceRegex::PieceRegex(std::string_view pattern) : classes_(kEnd + 1) {
  PatternParser parser(pattern);
  Program program(parser, parser.parse());

  // Characters that are in the same sets are one class.
  std::map<uint32_t, uint64_t> changes = {{kEnd, 0}, {kEnd + 1, 0}};
  for (size_t set = 0; set < parser.sets().size(); ++set)
    for (const auto& [begin, behind] : complement(complement(parser.sets()[set], kEnd + 1), kEnd + 1))
      for (const uint32_t code : {begin, behind}) changes[code] ^= uint64_t{1} << set;
  std::vector<uint64_t> masks;
  uint64_t mask = 0;
  uint32_t begin = 0;
  for (const auto& [code, changed] : changes) {
    const auto known = std::ranges::find(masks, mask) - masks.begin();
    if (code > begin && known == std::ssize(masks)) masks.push_back(mask);
    if (masks.size() > UINT8_MAX) parser.refuse("too many classes");
    std::fill(classes_.begin() + begin, classes_.begin() + code, static_cast<uint8_t>(known));
    mask ^= changed;
    begin = code;
  }
  count_ = masks.size();

  std::vector<Program::Threads> states = {{}, {0}};
  std::map<Program::Threads, size_t> known = {{states[0], 0}, {states[1], 1}};
  start_ = static_cast<uint32_t>(count_);
  for (size_t state = 0; state < states.size(); ++state)
    for (const uint64_t sets : masks) {
      Program::Threads taken;
      const bool matches = program.run(states[state], sets, taken);
      if (matches && state == 1) parser.refuse("a match of nothing");
      const auto next = known.try_emplace(std::move(taken), states.size()).first;
      if (next->second == states.size()) states.push_back(next->first);
      if (states.size() * count_ > kMaxSteps) parser.refuse("too many states");
      steps_.push_back(static_cast<uint32_t>(next->second * count_) + (matches ? kMatches : 0));
    }

  joined_.resize(count_ * count_);
  always_.assign(count_, true);
  for (size_t state = count_; state < steps_.size(); state += count_)
    for (size_t before = 0; before < count_; ++before) {
      const uint32_t next = steps_[state + before] & ~kMatches;
      for (size_t behind = 0; behind < count_; ++behind) {
        const uint32_t step = steps_[next + behind], at_end = steps_[next + classes_[kEnd]];
        if (next != 0 && ((step & ~kMatches) != 0 || step != at_end)) joined_[before * count_ + behind] = true;
        if (state == start_ && !(next != 0 && (step & kMatches))) always_[before] = false;
      }
    }
}

bool PieceRegex::always_matches() const {
  return std::all_of(classes_.begin(), classes_.end() - 1, [&](uint8_t type) { return always_[type]; });
}

}  // namespace trivet
