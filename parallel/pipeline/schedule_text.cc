// The text form of a schedule; see the top of schedule.h.
#include <algorithm>
#include <charconv>
#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "parallel/pipeline/check.h"
#include "parallel/pipeline/schedule.h"

namespace trivet {
namespace {

constexpr int kMost = 1 << 20;  // ranks, micro-batches or chunks: more must be a typo

const char* name_of(StageMap map) { return map == StageMap::interleaved ? "interleaved" : "v"; }

// A word of a line, with its column, so that errors can point at it.
struct Word {
  std::string_view text;
  int column;  // from 1
};

std::vector<Word> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<Word> words;
  for (size_t at = 0;;) {
    at = line.find_first_not_of(" \t\r", at);
    if (at == std::string_view::npos) return words;
    const size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    words.push_back({line.substr(at, end - at), static_cast<int>(at) + 1});
    at = end;
  }
}

// Reads a number at the front of `text` and removes it.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kMost) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view name) : name_(name) {
    for (size_t at = 0; at <= text.size(); ++line_) {
      const size_t end = std::min(text.find('\n', at), text.size());
      read_line(words_of(text.substr(at, end - at)));
      at = end + 1;
    }
  }

  Schedule finish() {
    const int lines = static_cast<int>(schedule_.programs.size());
    if (lines == 0) throw ConfigError(fmt::format("{}: the schedule has no line with ops", name_));
    if (p_ && *p_ != lines)
      throw ConfigError(fmt::format("{}: the header says p={}, but {} lines with ops follow", name_, *p_, lines));
    schedule_.p = lines;
    schedule_.m = m_.value_or(most_.microbatch + 1);
    schedule_.v = v_.value_or(most_.chunk + 1);
    return std::move(schedule_);
  }

 private:
  [[noreturn]] void fail_at(const Word& word, std::string_view why) const {
    throw ConfigError(fmt::format("{}:{}:{}: '{}': {}", name_, line_, word.column, word.text, why));
  }

  void read_line(std::vector<Word> words) {
    if (words.empty()) return;
    if (words[0].text == "schedule") {
      if (seen_header_ || !schedule_.programs.empty()) fail_at(words[0], "expected one header, before the ranks");
      seen_header_ = true;
      return read_header({words.begin() + 1, words.end()});
    }
    if (words[0].text.back() == ':') {
      std::string_view text = words[0].text;
      const std::optional<int> rank = take_number(text);
      const size_t expected = schedule_.programs.size();
      if (!rank || text != ":" || *rank != static_cast<int>(expected))
        fail_at(words[0], fmt::format("expected '{}:', the ranks in order", expected));
      words.erase(words.begin());
    }
    Program& program = schedule_.programs.emplace_back();
    for (const Word& word : words) program.push_back(read_op(word));
  }

  void read_header(const std::vector<Word>& words) {
    for (const Word& word : words) {
      const size_t equals = std::min(word.text.find('='), word.text.size());
      const std::string_view key = word.text.substr(0, equals);
      std::string_view value = word.text.substr(std::min(equals + 1, word.text.size()));
      const auto number = [&] {
        const std::optional<int> n = take_number(value);
        if (!n || *n < 1 || !value.empty()) fail_at(word, "expected a whole number of at least 1 after '='");
        return *n;
      };
      if (key == "kind") schedule_.kind = value;
      else if (key == "p") p_ = number();
      else if (key == "m") m_ = number();
      else if (key == "v") v_ = number();
      else if (key == "group") schedule_.group_size = number();
      else if (key == "map" && value == "interleaved") schedule_.map = StageMap::interleaved;
      else if (key == "map" && value == "v") schedule_.map = StageMap::v_shaped;
      else fail_at(word, "expected kind=NAME, p=N, m=N, v=N, group=N, map=interleaved or map=v");
    }
  }

  Op read_op(const Word& word) {
    constexpr std::string_view letters = "FBIW";
    constexpr std::string_view form =
        "expected F, B, I or W, the micro-batch, and .chunk where it is not 0: F3 or F3.1";
    std::string_view text = word.text;
    const size_t letter = letters.find(text[0]);
    if (letter == std::string_view::npos) fail_at(word, form);
    text.remove_prefix(1);
    const std::optional<int> microbatch = take_number(text);
    std::optional<int> chunk = 0;
    if (microbatch && text.starts_with('.')) {
      text.remove_prefix(1);
      chunk = take_number(text);
    }
    if (!microbatch || !chunk || !text.empty()) fail_at(word, form);
    if (m_ && *microbatch >= *m_) fail_at(word, fmt::format("the header says m={}, so 0 to {}", *m_, *m_ - 1));
    if (v_ && *chunk >= *v_) fail_at(word, fmt::format("the header says v={}, so chunks 0 to {}", *v_, *v_ - 1));
    most_.microbatch = std::max(most_.microbatch, *microbatch);
    most_.chunk = std::max(most_.chunk, *chunk);
    return {static_cast<OpKind>(letter), *microbatch, *chunk};
  }

  std::string name_;
  int line_ = 1;
  bool seen_header_ = false;
  Schedule schedule_;
  std::optional<int> p_, m_, v_;
  Op most_{OpKind::forward, 0, 0};
};

}  // namespace

std::string to_text(const Schedule& schedule) {
  std::string text = fmt::format("schedule kind={} p={} m={} v={} map={}", schedule.kind, schedule.p, schedule.m,
                                 schedule.v, name_of(schedule.map));
  if (schedule.group_size) text += fmt::format(" group={}", *schedule.group_size);
  text += '\n';
  for (size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    text += fmt::format("{}:", rank);
    for (const Op& op : schedule.programs[rank]) text += ' ' + to_string(op, schedule.v > 1);
    text += '\n';
  }
  return text;
}

Schedule parse_schedule(std::string_view text, std::string_view name) { return Parser(text, name).finish(); }

Schedule read_schedule_file(const std::string& path) {
  Schedule schedule = parse_schedule(read_small_file(path, int64_t{64} << 20), path);
  check_schedule(schedule, path + ": ");
  return schedule;
}

}  // namespace trivet
