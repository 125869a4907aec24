#include "tools/prepare/line_sample.h"

#include <algorithm>

#include "base/utf8.h"
#include "kernels/philox.h"

namespace trivet {
namespace {

constexpr size_t kMaxLineBytes = 4096;
constexpr uint64_t kSeed = 0x7472697665742e31;  // arbitrary

}  // namespace

void LineSample::add(std::string_view text) {
  while (!text.empty()) {
    const size_t size = part_size(of_lines_ ? text.substr(0, text.find('\n')) : text, kMaxLineBytes);
    const std::string_view line = text.substr(0, size);
    text.remove_prefix(size + (of_lines_ && size < text.size() && text[size] == '\n'));
    if (line.empty()) continue;
    const uint64_t number = count_++;
    const PhiloxWords random = philox4x32(number, 0, kSeed);
    const uint64_t rank = uint64_t{random.w[0]} << 32 | random.w[1];
    if (rank >= limit_) continue;
    lines_.push_back({rank, number, std::string(line)});
    bytes_ += static_cast<int64_t>(line.size());
    if (bytes_ > 2 * budget_) trim();
  }
}

void LineSample::trim() {
  std::sort(lines_.begin(), lines_.end(), [](const Line& a, const Line& b) { return a.rank < b.rank; });
  size_t chosen = 0;
  int64_t bytes = 0;
  while (chosen < lines_.size()) {
    const int64_t more = bytes + static_cast<int64_t>(lines_[chosen].text.size());
    if (more > budget_ && chosen > 0) break;
    bytes = more;
    ++chosen;
  }
  if (chosen < lines_.size()) limit_ = lines_[chosen].rank;
  lines_.resize(chosen);
  bytes_ = bytes;
}

std::vector<std::string> LineSample::take() {
  trim();
  std::sort(lines_.begin(), lines_.end(), [](const Line& a, const Line& b) { return a.number < b.number; });
  std::vector<std::string> texts;
  for (Line& line : lines_) texts.push_back(std::move(line.text));
  lines_.clear();
  return texts;
}

}  // namespace trivet
