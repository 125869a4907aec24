#include "engine/data/piece_regex.h"

#include <algorithm>
#include <cctype>
#include <fmt/format.h>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "engine/data/unicode_table.h"

namespace trivet {
namespace {

constexpr uint32_t kEnd = Character::kEnd;
constexpr size_t kMaxPattern = 16 << 10, kMaxSets = 64, kMaxDepth = 200, kMaxProgram = 1000, kMaxSteps = 1 << 14;
constexpr int kMaxRepeats = 1000;

// Half-open ranges [first, second), in any order.
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

// The ranges of a general category, such as Lu, or of all that begin with a letter, such as L. Empty: unknown.
Ranges of_category(std::string_view name) {
  Ranges found;
  if (name.empty() || name.size() > 2) return found;
  uint32_t at = 0, run = 0;
  for (const char c : kCategoryRuns) {
    const uint32_t digit = static_cast<uint32_t>(c) - '#' - (c > '\\');
    run = 45 * run + digit % 45;
    if (digit >= 45) continue;
    const uint32_t size = (run >> 5) + 1, category = run & 31;
    run = 0;
    for (uint32_t i = 0; i < (category < 30 ? 1 : size); ++i) {
      const uint32_t own = category < 30 ? category : (category + i) & 1, length = category < 30 ? size : 1;
      if (kCategoryNames.substr(2 * own, 2).starts_with(name)) found.emplace_back(at, at + length);
      at += length;
    }
  }
  return found;
}

// An instruction of Thompson's programs ("Regular expression search algorithm", 1968). A fork prefers the branch that
// backtracking tries first.
struct Instruction {
  // one: consumes a character in the set. ahead: the next character is in the set, and is not consumed.
  enum class Type : uint8_t { one, ahead, fork, match } type;
  size_t set = 0;
  int first = 0, second = 0;  // for a fork: the distances to its two successors
};
using Type = Instruction::Type;
using Code = std::vector<Instruction>;

Code operator+(Code code, const Code& next) {
  code.insert(code.end(), next.begin(), next.end());
  return code;
}
int length(const Code& code) { return static_cast<int>(code.size()); }
Code jump(int distance) { return {{Type::fork, 0, distance, distance}}; }
Code fork_over(const Code& code) { return Code{{Type::fork, 0, 1, length(code) + 1}} + code; }

class PatternParser {
 public:
  explicit PatternParser(std::string_view pattern) : pattern_(pattern) {
    if (pattern.size() > kMaxPattern) refuse("more characters than are supported");
    for (size_t at = 0; at < pattern.size(); at += character_at(pattern, at).size)
      codes_.push_back(character_at(pattern, at).code);
  }

  Code parse() {
    const Code whole = choice();
    if (at_ < codes_.size()) refuse("an unmatched )");
    return whole + Code{{Type::match}};
  }
  const std::vector<Ranges>& sets() const { return sets_; }

  [[noreturn]] void refuse(std::string_view what) const {
    throw DataError(fmt::format("{} in the pattern {} before character {}", what, json_text(pattern_.substr(0, 1000)),
                                std::min(at_, codes_.size()) + 1));
  }

 private:
  bool sees(std::string_view next) const {
    for (size_t i = 0; i < next.size(); ++i)
      if (at_ + i >= codes_.size() || codes_[at_ + i] != static_cast<uint8_t>(next[i])) return false;
    return true;
  }
  bool take(std::string_view next) {
    const bool found = sees(next);
    if (found) at_ += next.size();
    return found;
  }
  uint32_t next() {
    if (at_ == codes_.size()) refuse("an unexpected end");
    return codes_[at_++];
  }

  Code choice() {
    if (++depth_ > kMaxDepth) refuse("a group nested too deeply");
    Code first;
    while (at_ < codes_.size() && !sees("|") && !sees(")")) first = std::move(first) + repeated(atom());
    if (take("|")) {
      const Code others = choice();
      first = fork_over(first + jump(length(others) + 1)) + others;
    }
    if (first.size() > kMaxProgram) refuse("too many repeats");
    --depth_;
    return first;
  }

  Code repeated(Code of) {
    for (;;) {
      int least = sees("+") ? 1 : 0, most = sees("?") ? 1 : -1;
      const bool counted = take("{");
      if (counted) {
        least = number();
        most = take(",") ? number() : least;
        if (!take("}") || std::max(least, most) < 1 || (most >= 0 && most < least)) refuse("an invalid quantifier");
      } else if (!take("?") && !take("*") && !take("+")) {
        return of;
      }
      const bool single = of.size() == 1, possessive = !counted && take("+");  // in Oniguruma {n,m}+ is ({n,m})+
      if ((single && of[0].type == Type::ahead) || sees("?") || (possessive && !single))
        refuse("a repeated look-ahead, or a lazy or a group's possessive quantifier, not implemented,");
      Code all, end;
      if (possessive) end = {{Type::ahead, set(complement(sets_[of[0].set], kEnd + 1))}};
      for (int i = 0; i < least && all.size() <= kMaxProgram; ++i) all = std::move(all) + of;
      for (int i = std::max(least, 0); i < most && all.size() <= kMaxProgram; ++i)
        all = std::move(all) + fork_over(of + jump(length(end) + 1)) + end;
      if (most < 0) all = std::move(all) + fork_over(of + jump(-length(of) - 1)) + end;
      if (all.size() > kMaxProgram) refuse("too many repeats");
      of = std::move(all);
    }
  }

  // Parses a number; -1 if there is none.
  int number() {
    int value = -1;
    while (at_ < codes_.size() && '0' <= codes_[at_] && codes_[at_] <= '9')
      value = std::min(10 * std::max(value, 0) + static_cast<int>(next() - '0'), kMaxRepeats);
    if (value == kMaxRepeats) refuse("too many repeats");
    return value;
  }

  Code atom() {
    const uint32_t c = next();
    if (c == '(') return group();
    if (c == '[') return one(characters());
    if (c == '\\') return one(folded(escape()));
    if (c == '.') return one(complement({{'\n', '\n' + 1}}));
    if (c == '$') return {{Type::ahead, set({{'\n', '\n' + 1}, {kEnd, kEnd + 1}})}};
    if (is_one_of(c, "^*+?{")) refuse("an anchor or quantifier, not implemented,");
    // Oniguruma also matches some pairs of letters as one character, such as ß.
    if (fold_ && is_one_of(codes_[at_ - 2] | 0x20, "sf") && is_one_of(c | 0x20, "sfilt")) refuse("a ligature");
    return one(folded({{c, c + 1}}));
  }
  static bool is_one_of(uint32_t code, std::string_view of) {
    return code < 0x80 && of.find(static_cast<char>(code)) != of.npos;
  }

  Code group() {
    const bool fold = fold_, is = take("?="), is_not = take("?!");
    if (take("?i:")) fold_ = true;
    else if (!is && !is_not && !take("?:") && sees("?")) refuse("a kind of group, not implemented,");
    Code made = choice();
    fold_ = fold;
    if (!take(")")) refuse("a missing )");
    if (!is && !is_not) return made;
    if (made.size() != 1 || made[0].type != Type::one) refuse("a look-ahead of more than one character");
    return {{Type::ahead, is ? made[0].set : set(complement(sets_[made[0].set], kEnd + 1))}};
  }

  // Parses a class after its [.
  Ranges characters() {
    if (++depth_ > kMaxDepth) refuse("a class nested too deeply");
    const bool negated = take("^");
    Ranges all;
    do {
      if (sees("&&") || sees("[:") || sees("]")) refuse("an intersection, POSIX or empty class");
      const bool nested = take("[");
      Ranges item = nested ? characters() : characters_of(next());
      if (sees("-") && !sees("-]")) {
        ++at_;
        const Ranges last = characters_of(next());
        if (nested || item.size() != 1 || last.size() != 1 || last[0].first < item[0].first) refuse("an invalid range");
        item = {{item[0].first, last[0].second}};
      }
      all = joined(std::move(all), nested ? item : folded(item));
    } while (!take("]"));
    --depth_;
    return negated ? complement(all) : all;
  }
  Ranges characters_of(uint32_t c) { return c == '\\' ? escape() : Ranges{{c, c + 1}}; }

  Ranges escape() {
    const uint32_t c = next();
    constexpr std::string_view kNames = "tnvfr", kMeant = "\t\n\v\f\r";
    if (is_one_of(c, kNames)) return characters_of(static_cast<uint8_t>(kMeant[kNames.find(static_cast<char>(c))]));
    if (is_one_of(c, "SDP")) {
      codes_[--at_] |= 0x20;
      return complement(escape());
    }
    if (c == 's') return joined(of_category("Z"), {{'\t', '\r' + 1}, {0x85, 0x86}});
    if (c == 'd') return of_category("Nd");
    if (c == 'p' && take("{")) {
      std::string name;
      while (!take("}")) name += static_cast<char>(std::min(next(), uint32_t{0x7f}));
      Ranges found = of_category(name);
      if (found.empty()) refuse("a property that is not a general category");
      return found;
    }
    if (c >= 0x80 || !std::ispunct(static_cast<int>(c))) refuse("an escape, not implemented,");
    return {{c, c + 1}};
  }

  // Within (?i:…), adds the other cases of letters.
  Ranges folded(Ranges ranges) {
    if (!fold_) return ranges;
    Ranges cases;
    for (const auto& [begin, behind] : ranges) {
      if (behind > 0x80) refuse("characters beyond ASCII in (?i:…)");
      for (uint32_t c = begin; c < behind; ++c)
        if (std::isalpha(static_cast<int>(c)))
          for (const uint32_t other : {c ^ 0x20, (c | 0x20) == 's' ? 0x17f : (c | 0x20) == 'k' ? 0x212a : c})
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
  Code one(Ranges ranges) { return {{Type::one, set(std::move(ranges))}}; }

  const std::string_view pattern_;
  std::vector<uint32_t> codes_;
  std::vector<Ranges> sets_;
  size_t at_ = 0, depth_ = 0;
  bool fold_ = false;
};

// The threads of a program between two characters, the preferred one first: each is the next instruction to run.
using Threads = std::vector<size_t>;

// Runs a thread over the next character, which is in the sets of this mask, and appends the resulting threads to
// `taken`. seen: instructions that preferred threads reached. False: the thread matches, so later ones are dropped.
bool run(const Code& code, size_t at, uint64_t sets, std::vector<bool>& seen, Threads& taken) {
  if (seen[at]) return true;
  seen[at] = true;
  const auto follow = [&](int distance) {
    return run(code, at + static_cast<size_t>(static_cast<int64_t>(distance)), sets, seen, taken);
  };
  const auto& [type, set, first, second] = code[at];
  if (type == Type::fork) return follow(first) && follow(second);
  if (type == Type::match || !(sets >> set & 1)) return type != Type::match;
  if (type == Type::ahead) return follow(1);
  taken.push_back(at + 1);
  return true;
}

}  // namespace

PieceRegex::PieceRegex(std::string_view pattern) : classes_(kEnd + 1) {
  PatternParser parser(pattern);
  const Code code = parser.parse();

  // Characters that are in the same sets form one class.
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

  std::vector<Threads> states = {{}, {0}};
  std::map<Threads, size_t> known = {{states[0], 0}, {states[1], 1}};
  start_ = static_cast<uint32_t>(count_);
  for (size_t state = 0; state < states.size(); ++state)
    for (const uint64_t sets : masks) {
      Threads taken;
      std::vector<bool> seen(code.size());
      const auto goes_on = [&](size_t thread) { return run(code, thread, sets, seen, taken); };
      const bool matches = !std::ranges::all_of(states[state], goes_on);
      if (matches && state == 1) parser.refuse("an empty match");
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
